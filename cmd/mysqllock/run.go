package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/mysqllock/mysqllock"
)

func newRun(from *source) *cobra.Command {
	r := &runner{
		from:      from,
		wait:      period{mysqllock.WaitForever, map[string]time.Duration{"forever": mysqllock.WaitForever}},
		killAfter: period{auto, map[string]time.Duration{"auto": auto}},
	}
	c := &cobra.Command{
		Use:   "run NAME [--wait 30s] [--lease auto|1m] -- COMMAND [ARG…]",
		Short: "Run a command under a lock",
		Long: `Run COMMAND while holding the lock NAME, and exit with its status. COMMAND finds
the lock's name in MYSQLLOCK_NAME, its fencing token in MYSQLLOCK_TOKEN, and has
stdin, stdout and stderr to itself.

The lease. --lease auto is renewed until COMMAND ends; if this machine dies, the lock
is free at most 30s later, with auto:10s at most 10s. --lease 1m is fixed: COMMAND has
that long, less the margin below.

Loss. If the lease cannot be renewed in time, or is taken away (mysqllock unlock),
COMMAND gets TERM (and CONT), and KILL after --kill-after. A lease that cannot be
renewed counts as lost a margin before it ends: a tenth of a lease of up to 10s, 1s
of a longer one, a thousandth of one over 1,000s. The default of --kill-after is half
of that, at most 500ms, so that COMMAND has ended before anybody else can have the
lock. A longer one leaves COMMAND more time to clean up, for which somebody else may
hold the lock: then let what it writes to check MYSQLLOCK_TOKEN.

Signals. INT, TERM, HUP, QUIT, USR1, USR2 and WINCH are passed on to COMMAND, and
its end is waited for; while the lock is waited for, the first four end that. Away
from a terminal, COMMAND has a process group of its own, and signals go to all of
it. In the foreground of a terminal it shares that of mysqllock, so that it can use
the terminal: INT, QUIT and WINCH it gets from there and not from mysqllock, and only
COMMAND itself, not what it has started, is ended on loss.

If mysqllock is killed by KILL, Linux kills COMMAND with it, though not what COMMAND
has started; elsewhere COMMAND goes on without the lock. The lock is free when its
lease has ended. A mysqllock that is stopped (^Z, STOP) renews nothing, and ends
COMMAND when it goes on after the lease. What COMMAND leaves behind in the background
runs without the lock.

` + exitCodes,
		Example: `  # cron, on every host: while one is at it, the others do nothing
  mysqllock run nightly-report --wait 0 --conflict-exit-code 0 -- /usr/local/bin/report

  # one deploy at a time
  mysqllock run deploy:shop --wait 10m --identity "$USER" -- ./deploy.sh production

  # at most 5 minutes
  mysqllock run import --lease 5m -- sh -c 'exec ./import --token "$MYSQLLOCK_TOKEN"'`,
		Args: func(c *cobra.Command, args []string) error {
			switch dash := c.ArgsLenAtDash(); {
			case dash == 1 && len(args) > 1:
				return nil
			case dash == 1:
				return errors.New("there is no COMMAND behind --")
			default:
				return errors.New("want NAME, then -- and COMMAND: mysqllock run NAME -- COMMAND")
			}
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(_ *cobra.Command, args []string) error { return r.run(args[0], args[1:]) },
	}
	flags := c.Flags()
	flags.Var(&r.wait, "wait", "how long to wait for the lock: 0 for one attempt, forever")
	flags.Var(&r.lease, "lease", "auto or auto:10s, renewed until COMMAND ends; or a fixed one")
	flags.Var(&r.killAfter, "kill-after", "how long after TERM a COMMAND whose lock was lost is killed; auto is a twentieth of the lease, at most 500ms")
	flags.IntVarP(&r.conflict, "conflict-exit-code", "E", exitNotAcquired, "exit with this `status` if another owner held the lock for the whole wait; with 0, nothing is said of it")
	flags.StringVar(&r.identity, "identity", "", "the holder that others see (default host:pid)")
	return c
}

const auto time.Duration = -1

// A leaseFlag is auto, auto:DURATION or DURATION.
type leaseFlag struct{ renewed, fixed time.Duration }

func (f *leaseFlag) Set(s string) error {
	length, renewed := strings.CutPrefix(s, "auto:")
	if s == "auto" {
		*f = leaseFlag{}
		return nil
	}
	d, err := parsePeriod(length)
	switch {
	case err != nil:
		return err
	case d == 0:
		return errors.New("a fixed lease lasts at least 10ms, one of auto:… 1s")
	case renewed:
		*f = leaseFlag{renewed: d}
	default:
		*f = leaseFlag{fixed: d}
	}
	return nil
}

func (f *leaseFlag) String() string {
	switch {
	case f.fixed > 0:
		return f.fixed.String()
	case f.renewed > 0:
		return "auto:" + f.renewed.String()
	}
	return "auto"
}

func (*leaseFlag) Type() string { return "lease" }

// length is how long the lease lasts without a renewal.
func (f *leaseFlag) length() time.Duration {
	switch {
	case f.fixed > 0:
		return f.fixed
	case f.renewed > 0:
		return f.renewed
	}
	return mysqllock.DefaultLease
}

// A runner is one mysqllock run.
type runner struct {
	from            *source
	wait, killAfter period
	lease           leaseFlag
	conflict        int
	identity        string

	signals chan os.Signal
}

// grace is how long COMMAND has between TERM and KILL.
func (r *runner) grace() time.Duration {
	if r.killAfter.Duration != auto {
		return r.killAfter.Duration
	}
	return min(r.lease.length()/10, time.Second) / 2
}

func (r *runner) run(name string, argv []string) (err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	if cmd.Err != nil {
		return cannotRun(cmd.Err)
	}
	opts := []mysqllock.Option{
		mysqllock.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
	}
	if r.lease.renewed > 0 {
		opts = append(opts, mysqllock.WithLease(r.lease.renewed))
	}
	if r.identity != "" {
		opts = append(opts, mysqllock.WithIdentity(r.identity))
	}
	l, done, err := r.from.locker(opts...)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := done(); closeErr != nil {
			fmt.Fprintln(os.Stderr, "mysqllock:", plain(closeErr))
		}
	}()

	// What was ignored when the program was started (nohup) stays so, also for
	// COMMAND.
	r.signals = make(chan os.Signal, 64)
	for _, s := range passedOn {
		if !signal.Ignored(s) {
			signal.Notify(r.signals, s)
		}
	}
	defer signal.Stop(r.signals)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // not sooner: it would end the context of the lock
	held, err := r.acquire(ctx, cancel, l, name)
	if err != nil {
		return err
	}
	status, err := r.underLock(cmd, held)
	return r.release(held, status, err)
}

// acquire waits for the lock, or for a signal, which cancels the wait.
func (r *runner) acquire(ctx context.Context, cancel func(), l *mysqllock.Locker, name string) (*mysqllock.Lock, error) {
	type answer struct {
		lock *mysqllock.Lock
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		held, err := l.TryLock(ctx, name, r.wait.Duration, r.lease.fixed)
		answers <- answer{held, err}
	}()
	var ended syscall.Signal
	for {
		select {
		case s := <-r.signals:
			if s := s.(syscall.Signal); ends(s) {
				ended = s
				cancel()
			}
		case a := <-answers:
			switch {
			case ended != 0:
				if a.lock != nil {
					a.lock.Unlock()
				}
				return nil, exit{exitSignal + int(ended), fmt.Errorf("%v: the lock %s is not waited for any longer", ended, shown(name))}
			case errors.Is(a.err, mysqllock.ErrNotAcquired):
				return nil, r.busy(ctx, l, name, a.err)
			}
			return a.lock, a.err
		}
	}
}

// busy reports the holder of the lock, if it can be seen in a second. If that is no failure,
// nothing is said: cron mails what it hears.
func (r *runner) busy(ctx context.Context, l *mysqllock.Locker, name string, err error) error {
	if r.conflict == 0 {
		return exit{code: 0}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if now, lookErr := inspect(ctx, l, name); lookErr == nil && now.Held {
		err = fmt.Errorf("%w: held by %s since %s", err, shown(now.Holder), now.AcquiredAt.Format("2006-01-02 15:04:05Z"))
	}
	return exit{r.conflict, err}
}

// underLock runs the command, and ends it if the lock is lost.
func (r *runner) underLock(cmd *exec.Cmd, held *mysqllock.Lock) (status int, err error) {
	// The thread that starts COMMAND must not end before this process does: Linux
	// takes the end of the one for that of the other.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(),
		"MYSQLLOCK_NAME="+held.Name(), "MYSQLLOCK_TOKEN="+strconv.FormatUint(held.Token(), 10))
	child := newChild(cmd)
	select {
	case s := <-r.signals:
		if s := s.(syscall.Signal); ends(s) {
			return 0, exit{exitSignal + int(s), fmt.Errorf("%v: %s was not started", s, shown(cmd.Path))}
		}
	default:
	}
	if err := cmd.Start(); err != nil {
		return 0, cannotRun(err)
	}
	for len(r.signals) > 0 { // they came before COMMAND was there to get them
		child.signal((<-r.signals).(syscall.Signal))
	}

	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	lost := held.Context().Done()
	var kill <-chan time.Time
	for {
		select {
		case s := <-r.signals:
			if s := s.(syscall.Signal); !child.hasGot(s) {
				child.signal(s)
			}
		case <-lost:
			lost = nil
			fmt.Fprintf(os.Stderr, "mysqllock: the lock %s was lost: %s is ended\n", shown(held.Name()), shown(cmd.Path))
			child.signal(syscall.SIGTERM)
			child.resume()
			kill = time.After(r.grace())
		case <-kill:
			fmt.Fprintf(os.Stderr, "mysqllock: %s did not end in %v: it is killed\n", shown(cmd.Path), r.grace())
			child.signal(syscall.SIGKILL)
			kill = nil
		case <-ended:
			if kill != nil {
				child.endRest(kill)
			}
			return statusOf(cmd.ProcessState), nil
		}
	}
}

// release gives the lock back, and tells what to exit with.
func (r *runner) release(held *mysqllock.Lock, status int, err error) error {
	switch unlockErr := held.Unlock(); {
	case err != nil:
		return err
	case errors.Is(unlockErr, mysqllock.ErrLost):
		return exit{exitLost, fmt.Errorf("the lock %s was lost while COMMAND ran, which ended with status %d", shown(held.Name()), status)}
	case unlockErr != nil:
		fmt.Fprintln(os.Stderr, "mysqllock: the lock stays held until its lease ends:", plain(unlockErr))
	}
	if status != 0 {
		return exit{code: status}
	}
	return nil
}

func cannotRun(err error) error {
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return exit{exitNotFound, err}
	}
	return exit{exitCannotRun, err}
}
