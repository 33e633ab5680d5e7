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
	"slices"
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
		Use:   "run NAME… [--shared|--slots 3] [--wait 30s] [--lease auto|1m] -- COMMAND [ARG…]",
		Short: "Run a command under a lock",
		Long: `Run COMMAND while holding the lock NAME, and exit with its status. COMMAND finds
the lock's name in MYSQLLOCK_NAME, its fencing token in MYSQLLOCK_TOKEN, and has
stdin, stdout and stderr to itself.

Kinds. Without further flags, one run holds the lock NAME at a time. With several
NAMEs it acquires all of them or none; MYSQLLOCK_NAME and MYSQLLOCK_TOKEN then have a
line for each, in the order of the arguments. With --shared, any number of runs with
--shared hold the lock at a time, but none beside a run without it. With --slots 3, at
most three runs hold a permit of the semaphore NAME at a time, and MYSQLLOCK_SLOT has
the number of the permit, which is 1, 2 or 3. A semaphore and a lock of one NAME have
nothing to do with each other. A NAME that begins with a dash stands behind a -- of its
own: mysqllock run -- -x -- COMMAND.

Minimum. With --at-least 1h, the lock stays held for an hour from when it was acquired,
also if COMMAND ends sooner, whatever its status, and this machine after it: a job that is
due at the same time on several hosts runs once, although their clocks differ. If this
machine dies while COMMAND runs, the lock is free when its lease has ended.

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

  # once an hour, whichever host is first
  mysqllock run hourly --wait 0 -E 0 --at-least 55m -- ./hourly.sh

  # read beside others that read, while nobody runs without --shared
  mysqllock run catalog --shared -- ./export.sh

  # at most 3 at a time, of all hosts
  mysqllock run thumbnails --slots 3 -- sh -c 'exec ./thumbnails --worker "$MYSQLLOCK_SLOT"'

  # two locks, or none
  mysqllock run account:1 account:2 --wait 1m -- ./transfer.sh

  # at most 5 minutes
  mysqllock run import --lease 5m -- sh -c 'exec ./import --token "$MYSQLLOCK_TOKEN"'`,
		Args: func(c *cobra.Command, args []string) error {
			switch names, argv := split(args, c.ArgsLenAtDash()); {
			case len(names) == 0:
				return errors.New("want NAME, then -- and COMMAND: mysqllock run NAME -- COMMAND")
			case len(argv) == 0:
				return errors.New("there is no COMMAND behind --")
			}
			return nil
		},
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveDefault
		},
		RunE: func(c *cobra.Command, args []string) error {
			var argv []string
			r.names, argv = split(args, c.ArgsLenAtDash())
			if r.conflict < 0 || r.conflict > 255 {
				return usage("--conflict-exit-code %d: want 0 to 255", r.conflict)
			}
			switch slots := c.Flags().Changed("slots"); {
			case slots && (r.slots < 1 || r.slots > maxSlots):
				return usage("--slots %d: want 1 to %d", r.slots, maxSlots)
			case slots && len(r.names) > 1:
				return usage("--slots goes with one NAME: a run holds a permit of one semaphore")
			case r.shared && len(r.names) > 1:
				return usage("--shared goes with one NAME: several are acquired exclusively")
			}
			return r.run(argv)
		},
	}
	flags := c.Flags()
	flags.Var(&r.wait, "wait", "how long to wait for the lock: 0 for one attempt, forever")
	flags.Var(&r.lease, "lease", "auto or auto:10s, renewed until COMMAND ends; or a fixed one")
	flags.BoolVar(&r.shared, "shared", false, "hold the lock together with other runs that have --shared")
	flags.IntVar(&r.slots, "slots", 0, "hold one of this `number` of permits of the semaphore NAME")
	flags.Var(&r.atLeast, "at-least", "how long the lock stays held, from when it was acquired, even if COMMAND ends sooner")
	flags.Lookup("at-least").DefValue = "" // it has none
	c.MarkFlagsMutuallyExclusive("shared", "slots")
	flags.Var(&r.killAfter, "kill-after", "how long after TERM a COMMAND whose lock was lost is killed; auto is a twentieth of the lease, at most 500ms")
	flags.IntVarP(&r.conflict, "conflict-exit-code", "E", exitNotAcquired, "exit with this `status` if another owner held the lock for the whole wait; with 0, nothing is said of it")
	flags.StringVar(&r.identity, "identity", "", "the holder that others see (default host:pid)")
	return c
}

// split divides arguments into the names of locks and COMMAND, given how many stand before the
// first --. Names that begin with a dash stand behind it, and before another one.
func split(args []string, dash int) (names, argv []string) {
	if second := slices.Index(args, "--"); dash == 0 && second > 0 {
		return args[:second], args[second+1:]
	}
	return args[:max(dash, 0)], args[max(dash, 0):]
}

const auto time.Duration = -1

// maxSlots is the highest limit of a semaphore.
const maxSlots = 10_000

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
	names           []string
	shared          bool
	slots           int // 0 for a lock
	wait, killAfter period
	atLeast         period
	lease           leaseFlag
	conflict        int
	identity        string

	signals chan os.Signal
	stderr  *reporter
}

// killDelay is the time between TERM and KILL for COMMAND.
func (r *runner) killDelay() time.Duration {
	if r.killAfter.Duration != auto {
		return r.killAfter.Duration
	}
	return min(r.lease.length()/10, time.Second) / 2
}

func (r *runner) run(argv []string) (err error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	if cmd.Err != nil {
		return cannotRun(cmd.Err)
	}
	r.stderr = newReporter(os.Stderr)
	defer r.stderr.close()
	// Without this, a write to a stderr that nobody reads any more would end the process, and not
	// COMMAND. It lasts until the process ends, and COMMAND does not inherit it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	opts := []mysqllock.Option{
		mysqllock.WithLogger(slog.New(slog.NewTextHandler(r.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))),
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
			fmt.Fprintln(r.stderr, "mysqllock:", plain(closeErr))
		}
	}()

	// A signal that was ignored when the program was started (nohup) stays ignored, also
	// for COMMAND.
	r.signals = make(chan os.Signal, 64)
	for _, s := range forwarded {
		if !signal.Ignored(s) {
			signal.Notify(r.signals, s)
		}
	}
	defer signal.Stop(r.signals)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // not sooner: it would end the context of the lock
	held, err := r.acquire(ctx, cancel, l)
	if err != nil {
		return err
	}
	status, err := r.underLock(cmd, held)
	return r.release(held, status, err)
}

// acquire waits for the lock, or for a signal, which cancels the wait.
func (r *runner) acquire(ctx context.Context, cancel func(), l *mysqllock.Locker) (*holding, error) {
	type answer struct {
		held *holding
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		held, err := r.try(ctx, l)
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
				if a.held != nil {
					a.held.unlock()
				}
				return nil, exit{exitSignal + int(ended), fmt.Errorf("%v: %s is not waited for any longer", ended, r.what())}
			case errors.Is(a.err, mysqllock.ErrNotAcquired):
				return nil, r.busy(ctx, l, a.err)
			}
			return a.held, a.err
		}
	}
}

// busy reports the holders of the lock, if they can be read within a second. If a held lock is no
// failure, it prints nothing, because cron mails any output. Of several locks, the error names the one that was
// not free.
func (r *runner) busy(ctx context.Context, l *mysqllock.Locker, err error) error {
	if r.conflict == 0 {
		return exit{code: 0}
	}
	if len(r.names) > 1 {
		return exit{r.conflict, err}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	held := target{name: r.names[0], semaphore: r.slots > 0}
	if holders, lookErr := held.holders(ctx, l); lookErr == nil && len(holders) > 0 {
		err = fmt.Errorf("%w: held by %s", err, listed(holders))
	}
	return exit{r.conflict, err}
}

// underLock runs the command, and ends it if the lock is lost.
func (r *runner) underLock(cmd *exec.Cmd, held *holding) (status int, err error) {
	// The thread that starts COMMAND must not end before this process does, because Linux
	// would treat that as the end of the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), held.environment()...)
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
	for len(r.signals) > 0 { // they arrived before COMMAND was started
		child.signal((<-r.signals).(syscall.Signal))
	}

	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	lost := held.ctx.Done()
	var kill <-chan time.Time
	for {
		select {
		case s := <-r.signals:
			if s := s.(syscall.Signal); !child.alsoGot(s) {
				child.signal(s)
			}
		case <-lost:
			lost = nil
			fmt.Fprintf(r.stderr, "mysqllock: %s was lost: %s is ended\n", r.what(), shown(cmd.Path))
			child.signal(syscall.SIGTERM)
			child.resume()
			kill = time.After(r.killDelay())
		case <-kill:
			fmt.Fprintf(r.stderr, "mysqllock: %s did not end in %v: it is killed\n", shown(cmd.Path), r.killDelay())
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

// release releases the lock, and returns the exit status. err is why COMMAND was not started.
func (r *runner) release(held *holding, status int, err error) error {
	if err != nil {
		held.unlock()
		return err
	}
	switch unlockErr := held.unlockAfter(r.atLeast.Duration); {
	case errors.Is(unlockErr, mysqllock.ErrLost):
		return exit{exitLost, fmt.Errorf("%s was lost while COMMAND ran, which ended with status %d", r.what(), status)}
	case unlockErr != nil:
		fmt.Fprintln(r.stderr, "mysqllock:", r.what(), "stays held until its lease ends:", plain(unlockErr))
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
