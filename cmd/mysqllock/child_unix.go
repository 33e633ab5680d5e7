//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// passedOn are the signals that COMMAND gets too.
var passedOn = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// ends tells whether a signal ends the wait for the lock.
func ends(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// A child is COMMAND. In the foreground of a terminal it stays in our process
// group: in one of its own it could not read from the terminal, nor would ^C
// reach it.
type child struct {
	cmd   *exec.Cmd
	group bool // it has a process group of its own
}

func newChild(cmd *exec.Cmd) *child {
	c := &child{cmd, !inForeground()}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: c.group}
	dieWithParent(cmd.SysProcAttr)
	return c
}

// inForeground tells whether our process group is that to which the terminal
// sends what is typed.
func inForeground() bool {
	tty, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer tty.Close()
	group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return false
	}
	own, err := unix.Getpgid(0)
	return err == nil && group == own
}

// hasGot tells whether a signal that we got was sent to the child too, by the
// terminal.
func (c *child) hasGot(s syscall.Signal) bool {
	typed := s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGWINCH
	return !c.group && typed && inForeground()
}

// signal sends to COMMAND and, if it has a group of its own, to all of that.
func (c *child) signal(s syscall.Signal) {
	if c.group {
		syscall.Kill(-c.cmd.Process.Pid, s)
	} else {
		c.cmd.Process.Signal(s)
	}
}

// resume lets a child that was stopped get its TERM.
func (c *child) resume() { c.signal(syscall.SIGCONT) }

// endRest kills what is left of the child's group at the given time.
func (c *child) endRest(kill <-chan time.Time) {
	for c.group && syscall.Kill(-c.cmd.Process.Pid, 0) == nil {
		select {
		case <-kill:
			c.signal(syscall.SIGKILL)
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// statusOf is the status of a child as a shell tells it.
func statusOf(p *os.ProcessState) int {
	if w := p.Sys().(syscall.WaitStatus); w.Signaled() {
		return exitSignal + int(w.Signal())
	}
	return p.ExitCode()
}
