//go:build linux || darwin

package main

import (
	"bytes"
	"database/sql"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// patience is for what takes some milliseconds, on a machine that is busy.
const patience = 20 * time.Second

// An env is a database with the table, and a Locker to look at it.
type env struct {
	server *mysqltest.Server
	dbname string
	locker *mysqllock.Locker
}

// onEach runs a test on each server.
func onEach(t *testing.T, test func(t *testing.T, e env)) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.Shared(t, kind)
			e := env{server: server, dbname: mysqltest.NewDatabase(t, server)}
			db, err := sql.Open("mysql", server.DSN(e.dbname, ""))
			require.NoError(t, err)
			t.Cleanup(func() { db.Close() })
			e.locker, err = mysqllock.New(db, mysqllock.WithIdentity("the test"))
			require.NoError(t, err)
			t.Cleanup(func() { e.locker.Close() })
			require.NoError(t, e.locker.CreateTable(t.Context()))
			test(t, e)
		})
	}
}

func (e env) held(t *testing.T, name string) bool {
	info, err := e.locker.Inspect(t.Context(), name)
	require.NoError(t, err)
	return info.Held
}

// force takes the lock away, which its holder notices a third of its lease later.
func (e env) force(t *testing.T) {
	freed, err := e.locker.ForceUnlock(t.Context(), "job")
	require.NoError(t, err)
	require.True(t, freed)
}

// A running is a mysqllock run whose COMMAND is a script.
type running struct {
	*exec.Cmd
	dir    string // where the script runs
	stderr *buffer
	ended  chan struct{} // closed when it has
}

// script runs a script of sh under the lock "job", with flags added, and returns
// when that has made a file named "up".
func (e env) script(t *testing.T, dsn, script string, flags ...string) *running {
	r := e.start(t, dsn, script, flags...)
	r.waitFor(t, "up")
	return r
}

func (e env) start(t *testing.T, dsn, script string, flags ...string) *running {
	r := e.command(t, dsn, script, flags...)
	r.begin(t)
	return r
}

func (e env) command(t *testing.T, dsn, script string, flags ...string) *running {
	if dsn == "" {
		dsn = e.server.DSN(e.dbname, "")
	}
	args := append(append([]string{"run", "job"}, flags...), "--", "sh", "-c", script)
	r := &running{Cmd: exec.Command("mysqllock", args...), dir: t.TempDir(), stderr: new(buffer), ended: make(chan struct{})}
	r.Dir, r.Stderr = r.dir, r.stderr
	r.Env = append(os.Environ(), "MYSQLLOCK_DSN="+dsn)
	r.WaitDelay = time.Second // if what a script leaves behind has stderr open
	// As under cron: a session of its own, without a terminal.
	r.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return r
}

func (r *running) begin(t *testing.T) {
	// What this process ignores, as under nohup, the command would too.
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT)
	defer signal.Stop(heard)
	require.NoError(t, r.Start())
	go func() {
		r.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		r.Process.Kill()
		<-r.ended
		if child, err := os.ReadFile(filepath.Join(r.dir, "child")); err == nil && t.Failed() {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(child))); err == nil {
				syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
}

// status waits for the end and returns the status, as a shell tells it.
func (r *running) status(t *testing.T) int {
	select {
	case <-r.ended:
	case <-time.After(patience):
		require.Fail(t, "it does not end", "%s", r.stderr)
	}
	return statusOf(r.ProcessState)
}

// waitFor waits until the script has made a file that is not empty, and returns
// what is in it.
func (r *running) waitFor(t *testing.T, file string) string {
	var content []byte
	require.Eventually(t, func() bool {
		content, _ = os.ReadFile(filepath.Join(r.dir, file))
		return len(content) > 0 || t.Failed()
	}, patience, 5*time.Millisecond, "%s: %v", file, r.stderr)
	return strings.TrimSpace(string(content))
}

// alive tells whether the process whose id is in a file exists.
func (r *running) alive(t *testing.T, file string) bool {
	pid, err := strconv.Atoi(r.waitFor(t, file))
	require.NoError(t, err)
	return syscall.Kill(pid, 0) == nil
}

// gone waits until the process whose id is in a file is no more.
func (r *running) gone(t *testing.T, file string) {
	require.Eventually(t, func() bool { return !r.alive(t, file) }, patience, 5*time.Millisecond, file)
}

// A buffer collects output while it is read.
type buffer struct {
	mu  sync.Mutex // guards the following
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Signals reach COMMAND and what it has started; mysqllock waits for the end,
// and gives the lock back.
func TestSignalsArePassedOn(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		r := e.script(t, "", `
			for s in INT HUP QUIT USR1 USR2 WINCH; do trap "echo $s >$s" $s; done
			trap 'echo TERM >TERM; exit 3' TERM
			sh -c 'echo $$ >child; exec sleep 1000' &
			while [ ! -s child ]; do sleep 0.01; done
			echo up >up
			while :; do wait; done`)
		for _, s := range []struct {
			name   string
			signal syscall.Signal
		}{
			// Sleep takes no notice of WINCH, and as a background job of a shell
			// none of INT and QUIT.
			{"WINCH", syscall.SIGWINCH},
			{"INT", syscall.SIGINT},
			{"QUIT", syscall.SIGQUIT},
			{"HUP", syscall.SIGHUP},
			{"USR1", syscall.SIGUSR1},
			{"USR2", syscall.SIGUSR2},
		} {
			require.NoError(t, r.Process.Signal(s.signal))
			require.Equal(t, s.name, r.waitFor(t, s.name))
		}
		r.gone(t, "child") // of HUP
		require.True(t, e.held(t, "job"))
		require.NoError(t, r.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 3, r.status(t))
		require.Equal(t, "TERM", r.waitFor(t, "TERM"))
		require.False(t, e.held(t, "job"))
	})
}

// A COMMAND that dies of the signal: the status tells, and the lock is free.
func TestTermEndsBoth(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		r := e.script(t, "", "echo up >up; exec sleep 1000")
		require.NoError(t, r.Process.Signal(syscall.SIGTERM))
		require.Equal(t, 128+15, r.status(t))
		require.False(t, e.held(t, "job"))
	})
}

// A signal ends the wait for the lock.
func TestSignalEndsTheWait(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		k, err := e.locker.TryLock(t.Context(), "job", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		r := e.start(t, "", "echo ran >ran")
		require.Eventually(t, func() bool {
			info, err := e.locker.Inspect(t.Context(), "job")
			return err == nil && info.Waiters == 1
		}, patience, 5*time.Millisecond, "it does not wait")
		require.NoError(t, r.Process.Signal(syscall.SIGINT))
		require.Equal(t, 128+2, r.status(t))
		require.NoError(t, k.Unlock())
		require.NoFileExists(t, filepath.Join(r.dir, "ran"))
	})
}

// What was ignored at the start stays so, as nohup wants it.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		r := e.command(t, "", "echo up >up; while [ ! -e go ]; do sleep 0.01; done")
		r.Args = append([]string{"sh", "-c", `trap "" HUP; exec "$@"`, "sh", r.Path}, r.Args[1:]...)
		r.Path = "/bin/sh"
		r.begin(t)
		r.waitFor(t, "up")
		require.NoError(t, r.Process.Signal(syscall.SIGHUP))
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, "go"), nil, 0o600))
		require.Equal(t, 0, r.status(t))
	})
}

// The lock is taken away: COMMAND and what it has started are ended.
func TestForcedUnlockEndsCommand(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		r := e.script(t, "", `
			trap 'echo TERM >TERM; exit 3' TERM
			sh -c 'echo $$ >child; exec sleep 1000' &
			while [ ! -s child ]; do sleep 0.01; done
			echo up >up
			while :; do wait; done`, "--lease", "auto:3s", "--kill-after", patience.String())
		e.force(t)
		require.Equal(t, exitLost, r.status(t))
		require.Equal(t, "TERM", r.waitFor(t, "TERM"))
		r.gone(t, "child")
		require.Contains(t, r.stderr.String(), "the lock job was lost")
		require.Contains(t, r.stderr.String(), "ended with status 3")
	})
}

// One that takes no notice of TERM is killed, and so is what it leaves behind; a
// stopped one gets its TERM.
func TestStubbornCommandIsKilled(t *testing.T) {
	for _, c := range []struct{ name, script, killAfter, status string }{
		{"itself", `trap "" TERM; echo $$ >child; echo up >up; while :; do sleep 0.1; done`, "200ms", "137"},
		{"descendant", `(trap "" TERM; exec sh -c 'echo $$ >child; while :; do sleep 0.1; done') & while [ ! -s child ]; do sleep 0.01; done; echo up >up; wait`, "200ms", "143"},
		{"stopped", `echo $$ >child; echo up >up; kill -STOP $$; sleep 1000`, patience.String(), "143"},
	} {
		t.Run(c.name, func(t *testing.T) {
			onEach(t, func(t *testing.T, e env) {
				r := e.script(t, "", c.script, "--lease", "auto:3s", "--kill-after", c.killAfter)
				e.force(t)
				require.Equal(t, exitLost, r.status(t))
				r.gone(t, "child")
				require.Contains(t, r.stderr.String(), "ended with status "+c.status)
			})
		})
	}
}

// The database cannot be reached for longer than the lease: COMMAND has ended
// before anybody else can have the lock, though nobody could tell mysqllock.
func TestOutageEndsCommand(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		config, err := mysql.ParseDSN(e.server.DSN(e.dbname, ""))
		require.NoError(t, err)
		config.Addr = proxy.Addr()
		r := e.script(t, config.FormatDSN(), `trap "" TERM; echo $$ >child; echo up >up; while :; do sleep 0.1; done`, "--lease", "auto:10s")
		proxy.BlackHole(true)
		k, err := e.locker.TryLock(t.Context(), "job", 2*patience, mysqllock.AutoRenew)
		require.NoError(t, err)
		// It was killed half a second ago.
		require.False(t, r.alive(t, "child"), "COMMAND is alive under somebody else's lock")
		require.Equal(t, exitLost, r.status(t))
		require.NoError(t, k.Unlock())
		require.Contains(t, r.stderr.String(), "it is killed")
	})
}

// Nobody reads stderr, or its reader has ended, as of mysqllock run … 2>&1 | less: COMMAND is ended
// all the same when the lock is lost.
func TestStderrThatIsNotRead(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, out, in *os.File){
		"full":   fill,
		"closed": func(t *testing.T, out, _ *os.File) { require.NoError(t, out.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			onEach(t, func(t *testing.T, e env) {
				out, in, err := os.Pipe()
				require.NoError(t, err)
				defer in.Close()
				defer out.Close()
				r := e.command(t, "", `exec 2>/dev/null; trap 'echo TERM >TERM; exit 3' TERM; echo $$ >child; echo up >up; while :; do sleep 0.1; done`,
					"--lease", "auto:3s", "--kill-after", patience.String())
				prepare(t, out, in)
				r.Stderr = in
				r.begin(t)
				r.waitFor(t, "up")
				e.force(t)
				require.Equal(t, "TERM", r.waitFor(t, "TERM"))
				r.gone(t, "child")
				go io.Copy(io.Discard, out)
				require.Equal(t, exitLost, r.status(t))
			})
		})
	}
}

// fill writes to a pipe until it is full.
func fill(t *testing.T, _, in *os.File) {
	require.NoError(t, in.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	for err := error(nil); err == nil; {
		_, err = in.Write(make([]byte, 512))
	}
}

// COMMAND does not outlive a mysqllock that was killed.
func TestKilledWithCommand(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		if !dies {
			t.Skip("needs Linux")
		}
		r := e.script(t, "", "echo $$ >child; echo up >up; exec sleep 1000")
		require.NoError(t, r.Process.Kill())
		require.Equal(t, 128+9, r.status(t))
		r.gone(t, "child")
	})
}

// Watching goes on, also through a failure of the database, until a signal.
func TestWatch(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		config, err := mysql.ParseDSN(e.server.DSN(e.dbname, ""))
		require.NoError(t, err)
		config.Addr = proxy.Addr()
		r := e.command(t, config.FormatDSN(), "")
		r.Args = []string{"mysqllock", "ls", "--watch", "--interval", "100ms"}
		stdout := new(buffer)
		r.Stdout = stdout
		r.begin(t)
		require.Eventually(t, func() bool { return strings.Count(stdout.String(), "NAME") > 1 }, patience, 5*time.Millisecond, "%s", r.stderr)
		proxy.Refuse(true)
		proxy.Cut()
		require.Eventually(t, func() bool { return r.stderr.String() != "" }, patience, 5*time.Millisecond)
		proxy.Refuse(false)
		_, err = e.locker.TryLock(t.Context(), "job", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return strings.Contains(stdout.String(), "\njob ") }, patience, 5*time.Millisecond, "%s", r.stderr)
		require.NoError(t, r.Process.Signal(syscall.SIGINT))
		require.Equal(t, 0, r.status(t))
	})
}
