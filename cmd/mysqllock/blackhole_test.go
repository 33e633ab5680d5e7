//go:build linux || darwin

package main

import (
	"bytes"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// execute runs the program in this process, and returns its status and what it says in the end.
func execute(args ...string) (code int, said string) {
	var stderr bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	code = status(&stderr, root.Execute())
	return code, stderr.String()
}

// shorten sets the bounds of operations for a test, which must not be parallel.
func shorten(t *testing.T, operation, purge time.Duration) {
	o, p := operationBound, purgeBound
	t.Cleanup(func() { operationBound, purgeBound = o, p })
	operationBound, purgeBound = operation, purge
}

// A server that accepts connections, and does not answer, is given up.
func TestBlackHole(t *testing.T) {
	shorten(t, 300*time.Millisecond, 300*time.Millisecond)
	server := mysqltest.Shared(t, mysqltest.Kinds[0])
	proxy := wire.New(t, server.Addr())
	dsn := through(t, server, proxy)
	proxy.BlackHole(true)
	for _, args := range [][]string{
		{"ls"},
		{"show", "x"},
		{"init"},
		{"purge", "--idle", "0"},
		{"bench"},
		{"unlock", "--force", "--yes", "x"},
		{"unlock", "--force", "--yes", "x", "--slot", "1"},
	} {
		t.Run(args[0], func(t *testing.T) {
			type end struct {
				code int
				said string
			}
			ended := make(chan end, 1)
			go func() {
				code, said := execute(append(args, "--dsn", dsn)...)
				ended <- end{code, said}
			}()
			select {
			case e := <-ended:
				require.Equal(t, exitDatabase, e.code)
				require.Contains(t, e.said, "\nthe database did not answer in time\n")
				require.NotContains(t, e.said, "Guard")
			case <-time.After(patience):
				require.Fail(t, "it hangs")
			}
		})
	}
}

// An unlock that is given up behind a transaction under Guard names that.
func TestUnlockBehindAGuard(t *testing.T) {
	shorten(t, 3500*time.Millisecond, time.Minute)
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			server := mysqltest.Shared(t, kind)
			dsn := server.DSN(mysqltest.NewDatabase(t, server), "")
			db, err := sql.Open("mysql", dsn)
			require.NoError(t, err)
			defer db.Close()
			l, err := mysqllock.New(db)
			require.NoError(t, err)
			defer l.Close()
			require.NoError(t, l.CreateTable(t.Context()))
			lock, err := l.TryLock(t.Context(), "x", 0, mysqllock.AutoRenew)
			require.NoError(t, err)
			tx, err := db.Begin()
			require.NoError(t, err)
			defer tx.Rollback()
			require.NoError(t, lock.Guard(t.Context(), tx))
			code, said := execute("unlock", "--force", "--yes", "x", "--dsn", dsn)
			require.Equal(t, exitDatabase, code)
			require.Equal(t, "mysqllock: force unlock \"x\": given up after 3.5s: a transaction has the lock under Guard, or its row locked\n", said)
		})
	}
}
