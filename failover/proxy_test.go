//go:build unix

package failover_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// All connections go through a proxy. HAProxy closes connections that are idle for 6 s, which is longer than
// a waiter's statement sleeps, and shorter than the time between two renewals.
func TestBehindProxy(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		for _, proxy := range []string{"haproxy", "mysqlrouter"} {
			t.Run(proxy+" "+kind, func(t *testing.T) {
				t.Parallel()
				server := mysqltest.New(t, kind)
				createTables(t, server)
				testBehindProxy(t, mysqltest.NewBalancer(t, proxy, server.Addr(), map[string]string{"timeout": "6s"}))
			})
		}
	}
}

func testBehindProxy(t *testing.T, addr string) {
	locker := func(opts ...mysqllock.Option) *mysqllock.Locker { return newLocker(t, open(t, addr, ""), opts...) }
	l, waiter := locker(mysqllock.WithLease(21*time.Second)), locker()

	kept := acquire(t, l, "kept")
	_, err := waiter.TryLock(ctx, "kept", 0, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	_, err = waiter.TryLock(ctx, "kept", 100*time.Millisecond, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)

	var took []time.Duration
	for range 21 {
		took = append(took, measureHandoff(t, l, waiter, func() {}))
	}
	slices.Sort(took)
	t.Logf("a waiter acquired the lock after a median of %v, at most %v", took[len(took)/2].Round(10*time.Microsecond), took[len(took)-1].Round(10*time.Microsecond))
	require.Less(t, took[len(took)/2], 250*time.Millisecond, "the poll interval is a second")

	idle := measureHandoff(t, l, waiter, func() {
		renewals := l.Stats().Renewals
		eventually(t, "renewals after idle times", func() bool { return l.Stats().Renewals >= renewals+4 }) // two of each lock
	})
	t.Logf("a waiter that had waited for long acquired it after %v", idle.Round(10*time.Microsecond))
	require.Less(t, idle, 500*time.Millisecond)
	require.NoError(t, kept.Unlock())
	require.Zero(t, l.Stats().Lost)
}

// measureHandoff unlocks a lock for which another Locker waits, and returns the time until that has acquired
// it. It calls before while the waiter waits.
func measureHandoff(t *testing.T, l, waiter *mysqllock.Locker, before func()) time.Duration {
	t.Helper()
	k := acquire(t, l, "handed over")
	got := make(chan error, 1)
	go func() {
		next, err := waiter.TryLock(ctx, "handed over", time.Minute, mysqllock.AutoRenew)
		got <- err
		if err == nil {
			next.Unlock()
		}
	}()
	eventually(t, "a waiter in the queue", func() bool {
		info, err := l.Inspect(ctx, "handed over")
		return err == nil && info.Waiters == 1
	})
	before()
	released := time.Now()
	require.NoError(t, k.Unlock())
	require.NoError(t, <-got)
	return time.Since(released)
}
