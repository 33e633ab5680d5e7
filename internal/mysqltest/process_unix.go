//go:build unix

package mysqltest

import (
	"errors"
	"os"
	"syscall"
	"time"
)

const noHang = syscall.WNOHANG

// Pause makes the server stand still with all its connections open (SIGSTOP),
// until Continue. When it returns, no thread of the server runs any more: the
// signal itself only asks for that, and a busy machine takes its time.
func (s *Server) Pause() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.signal(syscall.SIGSTOP); err != nil || s.paused {
		return err
	}
	for !s.reap(syscall.WUNTRACED) {
		if s.paused {
			return nil
		}
	}
	return errKilled // it ended by itself meanwhile
}

// Continue ends a Pause.
func (s *Server) Continue() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.signal(syscall.SIGCONT); err != nil {
		return err
	}
	s.paused = false
	return nil
}

// signal sends the server a signal; s.mu is held.
func (s *Server) signal(sig syscall.Signal) error {
	if err := s.check(); err != nil {
		return err
	}
	if s.pid == 0 {
		return errKilled
	}
	return syscall.Kill(s.pid, sig)
}

// kill kills the server if it runs, and waits for its end; s.mu is held.
func (s *Server) kill() {
	if s.pid == 0 {
		return
	}
	syscall.Kill(s.pid, syscall.SIGKILL)
	for !s.reap(0) {
	}
}

// reap waits for the server's end, with WNOHANG not for long, and reports
// whether it came; with WUNTRACED it also returns when the server stands still.
// s.mu is held.
func (s *Server) reap(options int) bool {
	var status syscall.WaitStatus
	if pid, err := syscall.Wait4(s.pid, &status, options, nil); pid == 0 || errors.Is(err, syscall.EINTR) {
		return false
	}
	if s.paused = status.Stopped(); s.paused {
		return false
	}
	s.pid = 0
	s.guard.ended()
	return true
}

// Pause makes the broker stand still with all its connections open (SIGSTOP), until Continue.
func (b *Broker) Pause() { b.signal(syscall.SIGSTOP) }

// Continue ends a Pause.
func (b *Broker) Continue() { b.signal(syscall.SIGCONT) }

func (b *Broker) signal(sig syscall.Signal) {
	b.tb.Helper()
	if err := b.cmd.Process.Signal(sig); err != nil {
		b.tb.Fatal(err)
	}
}

// Suspend makes a process stand still until Resume.
func Suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// Resume ends a Suspend.
func Resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// ProcessorTime returns how much processor time this process has used.
func ProcessorTime() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
