//go:build unix

package mysqltest

import (
	"errors"
	"os"
	"syscall"
	"time"
)

const noHang = syscall.WNOHANG

// Pause stops the server (SIGSTOP) until Continue. Its connections stay open. Pause waits until no thread
// of the server runs, because a busy machine may take some time to stop them.
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
	return errKilled // it ended before it stopped
}

// Continue lets a paused server continue.
func (s *Server) Continue() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.signal(syscall.SIGCONT); err != nil {
		return err
	}
	s.paused = false
	return nil
}

// signal sends the server a signal. The caller holds mu.
func (s *Server) signal(sig syscall.Signal) error {
	if err := s.check(); err != nil {
		return err
	}
	if s.pid == 0 {
		return errKilled
	}
	return syscall.Kill(s.pid, sig)
}

// kill kills the server if it is running, and waits until it has ended. The caller holds mu.
func (s *Server) kill() {
	if s.pid == 0 {
		return
	}
	syscall.Kill(s.pid, syscall.SIGKILL)
	for !s.reap(0) {
	}
}

// reap waits until the server has ended, and reports whether it has. With WNOHANG, it does not wait. With
// WUNTRACED, it also returns when the server has stopped, and sets paused. The caller holds mu.
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

// Pause stops the broker (SIGSTOP) until Continue. Its connections stay open.
func (b *Broker) Pause() { b.signal(syscall.SIGSTOP) }

// Continue lets a paused broker continue.
func (b *Broker) Continue() { b.signal(syscall.SIGCONT) }

func (b *Broker) signal(sig syscall.Signal) {
	b.tb.Helper()
	if err := b.cmd.Process.Signal(sig); err != nil {
		b.tb.Fatal(err)
	}
}

// Suspend stops a process until Resume.
func Suspend(p *os.Process) error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a suspended process continue.
func Resume(p *os.Process) error { return p.Signal(syscall.SIGCONT) }

// ProcessorTime returns how much processor time this process has used.
func ProcessorTime() time.Duration {
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
