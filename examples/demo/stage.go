//go:build unix

package main

import (
	"bufio"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/examples/internal/demo"
)

// A stage runs the processes of the demo, prints what happens, and counts the checks.
type stage struct {
	dsn            string
	db             *sql.DB
	locker         *mysqllock.Locker // of the demo itself
	began          time.Time
	passed, failed int

	mu     sync.Mutex // guards actors
	actors []*actor   // that are on stage
}

func newStage(dsn string, db *sql.DB, locker *mysqllock.Locker) *stage {
	s := &stage{dsn: dsn, db: db, locker: locker, began: time.Now()}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		s.mu.Lock()
		for _, a := range s.actors {
			a.cmd.Process.Kill()
		}
		os.Exit(1)
	}()
	return s
}

func (s *stage) scene(format string, args ...any) {
	if s.passed+s.failed > 0 {
		fmt.Println()
	}
	fmt.Printf(format+"\n", args...)
}

// say prints a line with the time since the start of the demo.
func (s *stage) say(format string, args ...any) {
	fmt.Printf("%6.2f s  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *stage) check(ok bool, format string, args ...any) {
	mark := "ok"
	if ok {
		s.passed++
	} else {
		s.failed++
		mark = "FAILED"
	}
	fmt.Printf("%8s  %s\n", mark, fmt.Sprintf(format, args...))
}

// summary prints the result.
func (s *stage) summary() error {
	if s.failed > 0 {
		return fmt.Errorf("%d of %d checks failed", s.failed, s.passed+s.failed)
	}
	fmt.Printf("\nall %d checks passed in %.1f s\n", s.passed, time.Since(s.began).Seconds())
	return nil
}

// An actor is a process of the demo, as seen by the demo.
type actor struct {
	name  string
	cmd   *exec.Cmd
	input io.WriteCloser
	lines chan string // of its output; closed when it has ended
}

// start starts a process that takes a lock: for some turns, or, with 0, to keep it.
func (s *stage) start(name, lock string, turns int) (*actor, error) {
	cmd := demo.Process(s.dsn, "-process", name, "-lock", lock, "-turns", strconv.Itoa(turns))
	cmd.Stdout = nil
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	// In a group of its own, so that even a paused process ends if the demo is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	a := &actor{name: name, cmd: cmd, input: input, lines: make(chan string, 10)}
	go func() {
		defer close(a.lines)
		for in := bufio.NewScanner(output); in.Scan(); {
			a.lines <- in.Text()
		}
	}()
	s.mu.Lock()
	s.actors = append(s.actors, a)
	s.mu.Unlock()
	return a, nil
}

// startHolder starts a process that keeps a lock, and returns when it has it.
func (s *stage) startHolder(name, lock string) (a *actor, token uint64, err error) {
	if a, err = s.start(name, lock, 0); err == nil {
		token, err = a.got()
	}
	return a, token, err
}

// clear ends the processes that are on stage.
func (s *stage) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.actors {
		a.input.Close()
		a.signal(syscall.SIGCONT) // in case it is paused
		defer time.AfterFunc(10*time.Second, func() { a.cmd.Process.Kill() }).Stop()
	}
	for _, a := range s.actors {
		for range a.lines {
		}
		a.cmd.Wait()
	}
	s.actors = nil
}

func (a *actor) signal(sig syscall.Signal) error { return a.cmd.Process.Signal(sig) }

// reported reports whether the process has printed a line that was not read yet.
func (a *actor) reported() bool { return len(a.lines) > 0 }

// got waits until the process has its lock, and returns the token.
func (a *actor) got() (token uint64, err error) {
	text, err := a.next("got")
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(text, 10, 64)
}

// lost waits until the process prints that its lock is lost, and returns why.
func (a *actor) lost() (cause string, err error) { return a.next("lost") }

// write lets the process write under its lock, and returns what came of it.
func (a *actor) write() (outcome string, err error) {
	if _, err := fmt.Fprintln(a.input, "write"); err != nil {
		return "", err
	}
	return a.next("write")
}

// next returns the next line of the process, which must begin with a word,
// without that.
func (a *actor) next(word string) (rest string, err error) {
	select {
	case line, ok := <-a.lines:
		if !ok {
			return "", fmt.Errorf("process %s has ended", a.name)
		}
		rest, ok = strings.CutPrefix(line, word+" ")
		if !ok {
			return "", fmt.Errorf("process %s printed %q instead of %q", a.name, line, word)
		}
		return rest, nil
	case <-time.After(20 * time.Second):
		return "", fmt.Errorf("process %s has not printed %q for 20 s", a.name, word)
	}
}
