//go:build unix

// Package examples_test runs every example on every server.
package examples_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// programs is the directory with the built examples.
var programs string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	if programs, err = os.MkdirTemp("", "examples-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(programs)
	build := exec.Command("go", "build", "-o", programs+"/",
		"./counter", "./daily", "./demo", "./handover", "./http", "./queue", "./readers", "./server", "./stock", "./transfer", "./workers")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("%w\n%s", err, out)
	}
	defer mysqltest.StopShared()
	return m.Run(), nil
}

func TestExamples(t *testing.T) {
	for _, example := range []struct {
		name string
		args []string
		want []string // regular expressions
	}{
		{
			name: "handover", args: []string{"-scale", "0.2"},
			want: []string{`s  A +got it at once`, `s  B, worker 1 +got it after`, `s  B, worker 2 +got it after`, `\nok: `},
		},
		{
			name: "counter",
			want: []string{`A +\d+ ->`, `B +\d+ ->`, `19 -> 20\n`, `\nok: 20, no update lost`},
		},
		{
			name: "stock",
			want: []string{`sold piece 10\n`, `sold piece  1\n`, `\n10 sales of 10 different pieces, 0 left\nok: `},
		},
		{
			name: "daily",
			want: []string{`\nhost 1 is killed at work\nhost [2-5] does the report of `, `\n5 reports of 5 different days, 5 marks\nok: `},
		},
		{
			name: "http",
			want: []string{`/orders/42/ship  200  order 42 shipped`, `/orders/42/ship  409  `, `/orders/17/ship  200  `, `\nok: `},
		},
		{
			name: "readers",
			want: []string{`refresher writes version 5\n`, `reader \d reads, [234] at a time\n`, `\n24 reads, up to [234] at a time; 4 refreshes\nok: `},
		},
		{
			name: "workers",
			want: []string{`worker \d calls, slot [123], 3 at a time\n`, `\n24 calls of 8 processes, up to 3 at a time\nok: `},
		},
		{
			name: "transfer",
			want: []string{`teller 1: 1 from a to b: .* = 200\n`, `teller 2: 8 from b to a: .* = 200\n`, `\n32 transfers, 100 \+ 100 = 200\nok: `},
		},
		{
			name: "queue",
			want: []string{`shop    order 42  refused`, `order:42 stays held, holder: shop, order 42\n`, `worker  order 42  dropped`, `\norder:42 is free\nok: `},
		},
		{
			name: "demo",
			want: []string{`not acquired\n`, `kill -KILL`, `kill -STOP`, `kill -CONT`, `demo:force +process A`, `\nall 13 checks passed`},
		},
	} {
		for _, kind := range mysqltest.Kinds {
			t.Run(example.name+"/"+kind, func(t *testing.T) {
				t.Parallel()
				server := mysqltest.Shared(t, kind)
				dsn := server.DSN(mysqltest.NewDatabase(t, server), "parseTime=true")
				out := run(t, dsn, example.name, example.args...)
				require.Regexp(t, `^(MySQL|MariaDB) \d+\.\d+\.\d+ on `, out)
				for _, want := range example.want {
					require.Regexp(t, want, out)
				}
			})
		}
	}
}

// Without the lock the counter is wrong: what the lock prevents does happen.
func TestCounterWithoutLock(t *testing.T) {
	t.Parallel()
	out := run(t, "", "counter", "-nolock")
	require.Regexp(t, `\nwithout the lock: 1\d instead of 20, \d+ updates lost\n$`, out)
}

// onPrivateServers runs a test of what starts a server of its own, for each kind.
func onPrivateServers(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if os.Getenv("MYSQLLOCK_TEST_"+strings.ToUpper(kind)+"_DSN") != "" {
				t.Skip("starts no server")
			}
			test(t, kind)
		})
	}
}

// An example that is given no database starts a server of its own.
func TestPrivateServer(t *testing.T) {
	onPrivateServers(t, func(t *testing.T, kind string) {
		require.Contains(t, run(t, "", "stock", "-server", kind), "private server")
	})
}

// A program of one's own can use the server until it is interrupted.
func TestServer(t *testing.T) {
	onPrivateServers(t, func(t *testing.T, kind string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(programs, "server"), "-server", kind)
		cmd.Env = append(os.Environ(), "MYSQLLOCK_DSN=")
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		dsn := ""
		for lines := bufio.NewScanner(out); dsn == "" && lines.Scan(); {
			if line, ok := strings.CutPrefix(lines.Text(), "export MYSQLLOCK_DSN='"); ok {
				dsn = strings.TrimSuffix(line, "'")
			}
		}
		require.NotEmpty(t, dsn)
		require.Contains(t, run(t, dsn, "stock"), "\nok: ")
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		require.NoError(t, cmd.Wait())
		db, err := sql.Open("mysql", dsn)
		require.NoError(t, err)
		defer db.Close()
		require.Error(t, db.PingContext(ctx), "the server has ended")
	})
}

// run runs an example, which must succeed, and returns its output.
func run(t *testing.T, dsn, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(programs, name), args...)
	cmd.Env = append(os.Environ(), "MYSQLLOCK_DSN="+dsn)
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
