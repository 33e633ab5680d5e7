//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forwarded are the signals that are forwarded to COMMAND.
var forwarded = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
}

// ends reports whether a signal ends the wait for the lock.
func ends(s syscall.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// A child is COMMAND. In the foreground of a terminal, it stays in the process group of mysqllock: in a group
// of its own, it could not read from the terminal, and ^C would not reach it.
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

// inForeground reports whether the process group of mysqllock is that to which the terminal
// sends its input.
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

// alsoGot reports whether the terminal has sent a signal to the child, too.
func (c *child) alsoGot(s syscall.Signal) bool {
	typed := s == syscall.SIGINT || s == syscall.SIGQUIT || s == syscall.SIGWINCH
	return !c.group && typed && inForeground()
}

// signal sends a signal to COMMAND, and to the rest of its group if that is its own.
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

// statusOf returns the exit status of a child as a shell reports it.
func statusOf(p *os.ProcessState) int {
	if w := p.Sys().(syscall.WaitStatus); w.Signaled() {
		return exitSignal + int(w.Signal())
	}
	return p.ExitCode()
}
