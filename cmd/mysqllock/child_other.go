//go:build !unix

package main

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Where there are no signals but ^C, which the console sends to COMMAND too,
// COMMAND is killed when the lock is lost.

var forwarded = []os.Signal{os.Interrupt}

func ends(syscall.Signal) bool { return true }

type child struct{ cmd *exec.Cmd }

func newChild(cmd *exec.Cmd) *child { return &child{cmd} }

func (c *child) alsoGot(syscall.Signal) bool { return true }

func (c *child) signal(s syscall.Signal) {
	if s != syscall.SIGINT {
		c.cmd.Process.Kill()
	}
}

func (c *child) resume() {}

func (c *child) endRest(<-chan time.Time) {}

func statusOf(p *os.ProcessState) int { return p.ExitCode() }
