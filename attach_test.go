package mysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// other returns another database on the server.
func (e env) other(t *testing.T) string { return mysqltest.NewDatabase(t, e.server) }

// detach requires that a lock is detached by one statement.
func detach(t *testing.T, l *mysqllock.Locker, k *mysqllock.Lock, lease time.Duration) mysqllock.Ticket {
	t.Helper()
	before := l.Stats().Statements
	ticket, err := k.Detach(ctx, lease)
	require.NoError(t, err)
	require.Equal(t, before+1, l.Stats().Statements)
	return ticket
}

// A lock goes from one process to another, by one statement each, and nobody else has it in
// between.
func TestDetachAndAttachOnServers(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, worker, other := e.locker(t, mysqllock.WithLease(time.Second)), e.locker(t, mysqllock.WithLease(time.Second)), e.locker(t)
		require.NoError(t, acquire(t, worker, "used", mysqllock.AutoRenew).Unlock())
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		renewals := l.Stats().Renewals
		eventually(t, "bound to the session", func() bool { return l.Stats().Renewals >= renewals+2 })
		ticket := detach(t, l, k, time.Minute)
		requireOver(t, k, mysqllock.ErrNotHeld)
		require.ErrorIs(t, k.Unlock(), mysqllock.ErrNotHeld)
		_, err := other.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, l.Close(), "the lock does not need its process any more")
		info := requireHeld(t, other, "x", true)
		require.InDelta(t, 60, info.ExpiresIn.Seconds(), 10)
		require.Equal(t, k.Token(), info.Token)

		before := worker.Stats().Statements
		request, cancel := context.WithCancel(ctx)
		next, err := worker.Attach(request, ticket, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Equal(t, before+1, worker.Stats().Statements)
		require.Equal(t, k.Token(), next.Token())
		require.Equal(t, "x", next.Name())
		require.Equal(t, info.AcquiredAt, requireHeld(t, other, "x", true).AcquiredAt)
		for _, by := range []*mysqllock.Locker{worker, other} {
			_, err = by.Attach(ctx, ticket, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrLost, "it was attached before")
		}
		renewals = worker.Stats().Renewals
		eventually(t, "renewed", func() bool { return worker.Stats().Renewals >= renewals+3 })
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, next.Guard(ctx, tx))
		require.NoError(t, tx.Commit())
		cancel()
		require.NoError(t, next.Err())
		require.NoError(t, next.Unlock())
		requireHeld(t, other, "x", false)
		_, err = other.Attach(ctx, ticket, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrLost)
		require.Greater(t, acquire(t, other, "x", mysqllock.AutoRenew).Token(), k.Token())
	})
}

// A ticket is lost when its lease has ended, or by force.
func TestTicketsThatAreLost(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		ticket := detach(t, l, acquire(t, l, "x", mysqllock.AutoRenew), 300*time.Millisecond)
		next, err := other.TryLock(ctx, "x", 10*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		_, err = l.Attach(ctx, ticket, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrLost)
		require.NoError(t, next.Err())

		ticket = detach(t, l, acquire(t, l, "y", mysqllock.AutoRenew), 300*time.Millisecond)
		eventually(t, "free", func() bool {
			info, err := other.Inspect(ctx, "y")
			require.NoError(t, err)
			return !info.Held
		})
		_, err = l.Attach(ctx, ticket, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrLost, "although nobody else has taken it")
		requireHeld(t, other, "y", false)

		for what, lose := range losses {
			ticket = detach(t, l, acquire(t, l, what, mysqllock.AutoRenew), time.Minute)
			lose(t, e, what)
			_, err = l.Attach(ctx, ticket, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrLost, what)
		}
		require.EqualValues(t, 0, l.Stats().Held)
		_, err = l.Attach(ctx, "garbage", mysqllock.AutoRenew)
		require.ErrorContains(t, err, "not a ticket")
		_, err = l.Attach(ctx, ticket, time.Millisecond)
		require.ErrorIs(t, err, mysqllock.ErrInvalidLease)
	})
}

// A lock that is to become shared, but is exclusive while a transaction guards it, is detached only as a
// shared one.
func TestDetachBeforeTheLockIsShared(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, db := e.locker(t), e.db(t, "")
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		shared, err := l.TryRLock(k.Context(), "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		owner := context.WithoutCancel(k.Context())
		tx, err := db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, k.Guard(ctx, tx))
		require.NoError(t, k.Unlock())
		_, err = shared.Detach(ctx, time.Minute)
		require.ErrorContains(t, err, "still exclusive")
		require.NoError(t, shared.Err())
		require.NoError(t, tx.Commit())

		var ticket mysqllock.Ticket
		eventually(t, "not shared", func() bool {
			ticket, err = shared.Detach(ctx, time.Minute)
			return err == nil
		})
		attached, err := e.locker(t).Attach(owner, ticket, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.True(t, attached.Shared())
		require.Equal(t, shared.Token(), attached.Token())
		other, err := l.TryRLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, other.Unlock())
		require.NoError(t, attached.Unlock())
	})
}

// Of processes that attach a ticket at the same time, one has the lock.
func TestAttachAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		var lockers []*mysqllock.Locker
		for range 4 {
			lockers = append(lockers, e.locker(t))
		}
		for i := range 10 {
			name := fmt.Sprint("x", i)
			k := acquire(t, lockers[0], name, mysqllock.AutoRenew)
			ticket, err := k.Detach(ctx, time.Minute)
			require.NoError(t, err)
			var attached atomic.Pointer[mysqllock.Lock]
			var wg sync.WaitGroup
			for j := range 8 {
				wg.Go(func() {
					switch k, err := lockers[j%len(lockers)].Attach(ctx, ticket, mysqllock.AutoRenew); {
					case err != nil:
						if !isLost(err) {
							t.Error(err)
						}
					case !attached.CompareAndSwap(nil, k):
						t.Error("attached twice")
					}
				})
			}
			wg.Wait()
			next := attached.Load()
			require.NotNil(t, next)
			require.Equal(t, k.Token(), next.Token())
			require.NoError(t, next.Unlock())
			requireHeld(t, lockers[0], name, false)
		}
	})
}

// A lock is handed around while others compete for it: it is never held by two.
func TestHandedAround(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		end := time.Now().Add(4 * time.Second)
		var holders, rounds, handed atomic.Int64
		var wg sync.WaitGroup
		enter := func() {
			if n := holders.Add(1); n != 1 {
				t.Errorf("%d holders", n)
			}
		}
		for range 3 {
			l, worker := e.locker(t, mysqllock.WithLease(time.Second)), e.locker(t)
			wg.Go(func() {
				for time.Now().Before(end) {
					k, err := l.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
					if err != nil {
						t.Error(err)
						return
					}
					enter()
					rounds.Add(1)
					ticket, err := k.Detach(ctx, 20*time.Second)
					if err != nil {
						t.Error(err)
						return
					}
					next, err := worker.Attach(ctx, ticket, mysqllock.AutoRenew)
					if err != nil {
						t.Error(err)
						return
					}
					handed.Add(1)
					holders.Add(-1)
					if err := next.Unlock(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		t.Logf("%s: handed over in %d of %d rounds", e.server.Version, handed.Load(), rounds.Load())
		require.Positive(t, handed.Load())
	})
}

// A process that dies after Detach leaves the ticket to others; one that dies after Attach
// holds the lock for its lease.
func TestHandoverAndCrashes(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy, other := wire.New(t, e.server.Addr()), e.locker(t)
		crash := func() { proxy.Refuse(true); proxy.Cut() }
		dying := newLocker(t, e.through(t, proxy), mysqllock.WithLease(time.Second))
		ticket := detach(t, dying, acquire(t, dying, "x", mysqllock.AutoRenew), 20*time.Second)
		k, err := dying.Attach(ctx, detach(t, dying, acquire(t, dying, "y", mysqllock.AutoRenew), time.Hour), mysqllock.AutoRenew)
		require.NoError(t, err)
		crash()
		next, err := other.Attach(ctx, ticket, mysqllock.AutoRenew)
		require.NoError(t, err)
		requireOver(t, k, mysqllock.ErrLost)
		taken, err := other.TryLock(ctx, "y", 10*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Greater(t, taken.Token(), k.Token())
		require.NoError(t, next.Unlock())
		proxy.Refuse(false)
	})
}

// Lost replies, and statements that a proxy sends twice, change nothing.
func TestHandoverThroughAProxy(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		other := e.locker(t)
		for what, fault := range map[string]func(*wire.Proxy){
			"no reply":     (*wire.Proxy).CutBeforeNextReply,
			"not executed": (*wire.Proxy).CutAfterNextCommand,
			"twice":        func(p *wire.Proxy) { p.Repeat(true) },
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				proxy := wire.New(t, e.server.Addr())
				l := newLocker(t, e.through(t, proxy))
				k := acquire(t, l, what, mysqllock.AutoRenew)
				fault(proxy)
				ticket, err := k.Detach(ctx, time.Minute)
				require.NoError(t, err)
				fault(proxy)
				next, err := l.Attach(ctx, ticket, mysqllock.AutoRenew)
				require.NoError(t, err)
				require.Equal(t, k.Token(), next.Token())
				_, err = other.Attach(ctx, ticket, mysqllock.AutoRenew)
				require.ErrorIs(t, err, mysqllock.ErrLost)
				require.NoError(t, next.Unlock())
				requireHeld(t, other, what, false)
			})
		}
	})
}

// The database is out of reach: no lock is left behind by Detach or by Attach.
func TestHandoverDuringAnOutage(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		other := e.locker(t)
		proxy := wire.New(t, e.server.Addr())
		l := newLocker(t, e.through(t, proxy))
		x, y := acquire(t, l, "x", mysqllock.AutoRenew), acquire(t, l, "y", mysqllock.AutoRenew)
		ticket := detach(t, l, y, time.Minute)
		proxy.Freeze(true)
		var wg sync.WaitGroup
		wg.Go(func() {
			ticket, err := x.Detach(ctx, time.Hour)
			if err == nil || ticket != "" {
				t.Error("a ticket without a reply")
			}
		})
		wg.Go(func() {
			_, err := l.Attach(ctx, ticket, mysqllock.AutoRenew)
			if !isUnavailable(err) {
				t.Error(err)
			}
		})
		wg.Wait()
		proxy.Freeze(false)
		require.NoError(t, acquire(t, other, "x", mysqllock.AutoRenew).Unlock())
		// The statement may have been executed, and what it took released, or not.
		if k, err := other.Attach(ctx, ticket, mysqllock.AutoRenew); err == nil {
			require.NoError(t, k.Unlock())
		}
		eventually(t, "free", func() bool {
			info, err := other.Inspect(ctx, "y")
			require.NoError(t, err)
			return !info.Held
		})
	})
}

// A detached row that a transaction has locked is not attached within the time limit.
func TestAttachBehindALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, db := e.locker(t), e.db(t, "")
		ticket := detach(t, l, acquire(t, l, "x", mysqllock.AutoRenew), time.Hour)
		tx, err := db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("UPDATE mysqllock SET holder = 'somebody' WHERE name = 'x'")
		require.NoError(t, err)
		for _, limit := range []int{0, 1} {
			pool := e.db(t, "")
			pool.SetMaxOpenConns(limit)
			waits := newLocker(t, pool)
			start := time.Now()
			_, err = waits.Attach(ctx, ticket, mysqllock.AutoRenew)
			require.Error(t, err)
			require.NotErrorIs(t, err, mysqllock.ErrLost)
			require.Less(t, time.Since(start), 5*time.Second)
		}
		require.NoError(t, tx.Rollback())
		eventually(t, "free, or the ticket is good", func() bool {
			k, err := l.Attach(ctx, ticket, mysqllock.AutoRenew)
			if err == nil {
				require.NoError(t, k.Unlock())
			}
			info, err := l.Inspect(ctx, "x")
			require.NoError(t, err)
			return !info.Held
		})
	})
}

// An Attach whose context ends has the error of any acquire whose context ends.
func TestErrorsOfAttach(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		holder := e.locker(t)
		proxy := wire.New(t, e.server.Addr())
		dead := newLocker(t, e.through(t, proxy))
		proxy.Refuse(true)
		pool := e.db(t, "")
		pool.SetMaxOpenConns(1)
		usedUp := newLocker(t, pool)
		conn, err := pool.Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		for name, c := range map[string]struct {
			l           *mysqllock.Locker
			locked      bool
			is, isNot   error
			alwaysKnown bool
		}{
			"no connection":    {dead, false, mysqllock.ErrUnavailable, mysqllock.ErrNotAcquired, true},
			"pool used up":     {usedUp, false, mysqllock.ErrUnavailable, mysqllock.ErrNotAcquired, true},
			"row locked":       {newLocker(t, e.connected(t, 3)), true, mysqllock.ErrNotAcquired, mysqllock.ErrUnavailable, false},
			"ended from start": {holder, false, mysqllock.ErrNotAcquired, mysqllock.ErrUnavailable, false},
		} {
			ticket := detach(t, holder, acquire(t, holder, name, mysqllock.AutoRenew), time.Hour)
			if c.locked {
				require.NoError(t, tx.QueryRow("SELECT name FROM mysqllock WHERE name = ? FOR UPDATE", name).Scan(new(string)))
			}
			for _, after := range []time.Duration{0, 5 * time.Millisecond, 300 * time.Millisecond, 2 * time.Second} {
				if after == 0 != (name == "ended from start") || after < 100*time.Millisecond && after > 0 && !c.alwaysKnown {
					continue
				}
				leaving, cancel := context.WithCancelCause(ctx)
				if after == 0 {
					cancel(errLeaving)
				}
				stop := time.AfterFunc(after, func() { cancel(errLeaving) })
				_, err := c.l.Attach(leaving, ticket, mysqllock.AutoRenew)
				stop.Stop()
				cancel(nil)
				ending{cancel: 1}.assertClass(t, err, c.is, c.isNot)
			}
		}
	})
}

// A pool of one connection is enough.
func TestHandoverInAPoolOfOne(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		db.SetMaxOpenConns(1)
		l := newLocker(t, db)
		beside := acquire(t, l, "beside", mysqllock.AutoRenew)
		k, err := l.Attach(ctx, detach(t, l, acquire(t, l, "x", mysqllock.AutoRenew), time.Minute), mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, k.UnlockAfter(time.Hour))
		requireUntil(t, l, "x", time.Hour)
		require.NoError(t, l.DoTx(ctx, "y", 0, mysqllock.AutoRenew, nil, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, "SELECT 1")
			return err
		}))
		require.NoError(t, beside.Unlock())
	})
}
