package mysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// begin begins a transaction, which ends with the test.
func begin(t *testing.T, e env) *sql.Tx {
	t.Helper()
	tx, err := e.db(t, "").Begin()
	require.NoError(t, err)
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

// bothModes acquires a lock exclusively and then shared, for one owner.
func bothModes(t *testing.T, l *mysqllock.Locker, name string) (w, r *mysqllock.Lock) {
	t.Helper()
	owner := mysqllock.WithOwner(ctx)
	w, err := l.TryLock(owner, name, 0, auto)
	require.NoError(t, err)
	r, err = l.TryRLock(owner, name, 0, auto)
	require.NoError(t, err)
	return w, r
}

// A transaction may be under Guard after its shared hold has ended. An exclusive request waits for
// it with pauses.
func TestExclusiveRequestBehindAGuardOfASharedHold(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		r, tx := rlock(t, a, "x", auto), begin(t, e)
		require.NoError(t, r.Guard(ctx, tx))
		require.NoError(t, r.Unlock())
		w := try(func() (*mysqllock.Lock, error) { return b.Lock(ctx, "x", auto) })
		requireWaiting(t, b, 1)
		before := b.Stats().Statements
		w.requireWaits(t, 2*time.Second)
		require.Less(t, b.Stats().Statements-before, int64(60))
		require.NoError(t, tx.Rollback())
		start := time.Now()
		require.NoError(t, w.lock(t).Unlock())
		require.Less(t, time.Since(start), time.Second)
	})
}

// The minimum time of one shared hold does not end with another of the same process.
func TestUnlockAfterBesideASharedHoldThatExpires(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		for _, lease := range []time.Duration{auto, 250 * time.Millisecond} {
			r1, r2 := rlock(t, a, "x", lease), rlock(t, a, "x", 300*time.Millisecond)
			start := time.Now()
			require.NoError(t, r1.UnlockAfter(1500*time.Millisecond))
			requireOver(t, r2, mysqllock.ErrLost)
			k, err := b.TryLock(ctx, "x", 10*time.Second, auto)
			require.NoError(t, err)
			require.Greater(t, time.Since(start), 1300*time.Millisecond)
			require.NoError(t, k.Unlock())
		}
	})
}

// A shared hold does not depend on the lease of another that is about to end.
func TestSharedHoldBesideOneThatEnds(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		require.NoError(t, rlock(t, l, "x", auto).Unlock())
		for range 20 {
			short := rlock(t, l, "x", 30*time.Millisecond)
			for short.Remaining() > time.Millisecond {
				time.Sleep(100 * time.Microsecond)
			}
			k := rlock(t, l, "x", auto)
			time.Sleep(20 * time.Millisecond)
			require.NoError(t, k.Err())
			require.NoError(t, k.Unlock())
			short.Unlock()
		}
	})
}

// Each detached hold keeps a row of its process, which the next ones need not search for.
func TestManyDetachedSharedHolds(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		for i := range 120 {
			before := l.Stats().Statements
			k := rlock(t, l, "x", auto)
			require.LessOrEqual(t, l.Stats().Statements-before, int64(20), "%d", i)
			_, err := k.Detach(ctx, time.Minute)
			require.NoError(t, err)
		}
	})
}

func TestStatsOfSharedHoldsThatCloseReleases(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		for range 5 {
			rlock(t, l, "x", auto)
		}
		require.NoError(t, l.Close())
		s := l.Stats()
		require.Equal(t, int64(5), s.Acquired)
		require.Equal(t, int64(5), s.Released)
		require.Zero(t, s.Held)
	})
}

// A transaction that was under Guard does not keep a hold from becoming shared. One that still is
// does, and loses nothing.
func TestDowngradeAndGuard(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t, mysqllock.WithLease(time.Second)), e.locker(t)
		w, r := bothModes(t, l, "x")
		tx := begin(t, e)
		require.NoError(t, w.Guard(ctx, tx))
		require.NoError(t, tx.Commit())
		require.NoError(t, w.Unlock())
		require.NoError(t, rlock(t, other, "x", auto).Unlock())
		require.NoError(t, r.Unlock())

		w, r = bothModes(t, l, "x")
		tx = begin(t, e)
		require.NoError(t, w.Guard(ctx, tx))
		require.NoError(t, w.Unlock())
		for start := time.Now(); time.Since(start) < 1500*time.Millisecond; time.Sleep(5 * time.Millisecond) {
			require.NoError(t, r.Err())
		}
		_, err := other.TryRLock(ctx, "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, tx.Rollback())
		require.NoError(t, r.Unlock())
		require.NoError(t, acquire(t, other, "x", auto).Unlock())
	})
}

// The loss of a hold that is becoming shared needs no reply.
func TestLossDuringADowngrade(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		l := newLocker(t, e.through(t, proxy), mysqllock.WithLease(time.Second))
		w, r := bothModes(t, l, "x")
		// This blocks all statements.
		proxy.Interfere(func(query string) wire.Interference {
			if strings.Contains(query, "SET l.mode = 2") {
				time.Sleep(2 * time.Second)
				return wire.Interference{Error: 1205, NotSent: true}
			}
			return wire.Interference{}
		})
		start := time.Now()
		unlocked := make(chan error, 1)
		go func() { unlocked <- w.Unlock() }()
		requireOver(t, r, mysqllock.ErrLost)
		require.Less(t, time.Since(start), time.Second)
		require.NoError(t, <-unlocked)
		proxy.Interfere(nil)
		require.ErrorIs(t, r.Unlock(), mysqllock.ErrLost)
		require.NoError(t, acquire(t, e.locker(t), "x", auto).Unlock())
	})
}

// A hold that is becoming shared is lost when its exclusive lease ends, however long the shared one
// that it requests: another process can have the lock then.
func TestShortLeaseDuringADowngrade(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy, other := wire.New(t, e.server.Addr()), e.locker(t)
		l := newLocker(t, e.through(t, proxy))
		owner := mysqllock.WithOwner(ctx)
		w, err := l.TryLock(owner, "x", 0, time.Second)
		require.NoError(t, err)
		r, err := l.TryRLock(owner, "x", 0, auto)
		require.NoError(t, err)
		// This blocks all statements.
		proxy.Interfere(func(query string) wire.Interference {
			if strings.Contains(query, "SET l.mode = 2") {
				time.Sleep(2500 * time.Millisecond)
				return wire.Interference{Error: 1205, NotSent: true}
			}
			return wire.Interference{}
		})
		unlocked := make(chan error, 1)
		go func() { unlocked <- w.Unlock() }()
		k := acquire(t, other, "x", auto)
		require.ErrorIs(t, r.Err(), mysqllock.ErrLost)
		require.ErrorIs(t, context.Cause(r.Context()), mysqllock.ErrLost)
		require.NoError(t, <-unlocked)
		proxy.Interfere(nil)
		require.ErrorIs(t, r.Unlock(), mysqllock.ErrLost)
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
	})
}

// A lock becomes shared even if a statement for that fails at first.
func TestDowngradeAfterAnError(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for i, part := range []string{"SET l.mode = 2", "INTO `mysqllock`", "l.mode = 1,"} {
			proxy, other, name := wire.New(t, e.server.Addr()), e.locker(t), fmt.Sprint("x", i)
			l := newLocker(t, e.through(t, proxy))
			w, r := bothModes(t, l, name)
			var failed atomic.Int32
			proxy.Interfere(func(query string) wire.Interference {
				if strings.Contains(query, part) && failed.Add(1) <= 3 {
					return wire.Interference{Error: 1213, NotSent: true}
				}
				return wire.Interference{}
			})
			require.NoError(t, w.Unlock())
			require.NoError(t, rlock(t, other, name, auto).Unlock(), part)
			require.Greater(t, failed.Load(), int32(3), part)
			proxy.Interfere(nil)
			require.NoError(t, r.Unlock())
		}
	})
}

// A statement that adds the row of the shared hold may be executed without a reply, and even after the
// next try. The lock stays exclusive until that try, and no row is left behind.
func TestDowngradeAfterALostReply(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for _, late := range []bool{false, true} {
			proxy, other, direct, name := wire.New(t, e.server.Addr()), e.locker(t), e.db(t, ""), fmt.Sprint("x", late)
			l := newLocker(t, e.through(t, proxy))
			w, r := bothModes(t, l, name)
			joins := make(chan string, 1)
			proxy.Interfere(func(query string) wire.Interference {
				if strings.Contains(query, "INTO `mysqllock`") {
					select {
					case joins <- query:
						return wire.Interference{Error: 2013, NotSent: late}
					default:
					}
				}
				return wire.Interference{}
			})
			require.NoError(t, w.Unlock())
			require.NoError(t, r.Err())
			if late {
				direct.Exec(<-joins) // it may be executed before the next try, or be refused after it
			}
			require.NoError(t, rlock(t, other, name, auto).Unlock())
			require.NoError(t, r.Err())
			proxy.Interfere(nil)
			require.NoError(t, r.Unlock())
			k, err := other.TryLock(ctx, name, 3*time.Second, auto)
			require.NoError(t, err)
			require.NoError(t, k.Unlock())
		}
	})
}

// A lateTx holds its first query back.
type lateTx struct {
	*sql.Tx
	late func()
}

func (tx *lateTx) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	if late := tx.late; late != nil {
		tx.late = nil
		late()
	}
	return tx.Tx.QueryRowContext(ctx, query, args...)
}

// A Guard whose statement arrives when the lock has become shared is one of the shared lock.
func TestGuardDuringADowngrade(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		w, r := bothModes(t, l, "x")
		tx := begin(t, e)
		require.NoError(t, r.Guard(ctx, &lateTx{tx, func() { require.NoError(t, w.Unlock()) }}))
		require.NoError(t, r.Err())
		require.NoError(t, r.Unlock())
		_, err := other.TryLock(ctx, "x", 100*time.Millisecond, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, tx.Rollback())
		require.NoError(t, acquire(t, other, "x", auto).Unlock())
	})
}

// A hold whose downgrade has taken too long is lost, and leaves no lock behind.
func TestDowngradeBehindALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t, mysqllock.WithLease(time.Second))
		w, r := bothModes(t, l, "x")
		time.Sleep(700 * time.Millisecond) // until a session keeps the row
		tx := begin(t, e)
		_, err := tx.Exec("SELECT 1 FROM mysqllock WHERE name = 'x' FOR UPDATE")
		require.NoError(t, err)
		require.NoError(t, w.Unlock())
		require.NoError(t, tx.Rollback())
		requireOver(t, r, mysqllock.ErrLost)
		require.ErrorIs(t, r.Unlock(), mysqllock.ErrLost)
		require.NoError(t, acquire(t, e.locker(t), "x", auto).Unlock())
	})
}

// A claim whose row is locked when the request is sent again is still the claim of the call: it
// goes on with it, and releases it when it gives up.
func TestClaimWhoseRowIsLocked(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		db := e.through(t, proxy)
		db.SetMaxOpenConns(1) // no statement may wait for a row
		l, other := newLocker(t, db, mysqllock.WithoutSignal()), e.locker(t)
		require.NoError(t, rlock(t, l, "x", auto).Unlock())
		tx := begin(t, e)
		var once sync.Once
		proxy.Interfere(func(query string) (i wire.Interference) {
			if strings.Contains(query, "AS alone") {
				once.Do(func() {
					_, err := tx.Exec("SELECT 1 FROM mysqllock WHERE name = 'x' FOR UPDATE")
					assert.NoError(t, err)
					i = wire.Interference{Error: 1205, NotSent: true}
				})
			}
			return i
		})
		_, err := l.TryLock(ctx, "x", 300*time.Millisecond, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, tx.Rollback())
		k, err := other.TryLock(ctx, "x", 2*time.Second, auto)
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
	})
}

// A proxy that sends a claim twice, the second time while the row is locked, has claimed the name.
func TestRepeatedClaimOfALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		db := e.through(t, proxy)
		db.SetMaxOpenConns(1)
		l, other, direct := newLocker(t, db, mysqllock.WithoutSignal()), e.locker(t), e.db(t, "")
		require.NoError(t, rlock(t, l, "x", auto).Unlock())
		tx := begin(t, e)
		var once sync.Once
		proxy.Interfere(func(query string) wire.Interference {
			if strings.Contains(query, "AS taken") {
				once.Do(func() { // the first copy
					_, err := direct.Exec(query)
					assert.NoError(t, err)
					_, err = tx.Exec("SELECT 1 FROM mysqllock WHERE name = 'x' FOR UPDATE")
					assert.NoError(t, err)
				})
			}
			return wire.Interference{}
		})
		_, err := l.TryLock(ctx, "x", 300*time.Millisecond, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, tx.Rollback())
		k, err := other.TryLock(ctx, "x", 2*time.Second, auto)
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
	})
}

// A statement that claims a name again, but is executed only after its call has returned and the claim
// was released, keeps nobody out for as long as a claim lasts. A lock that is acquired and released in
// between hides that release from the statement.
func TestLateClaim(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy, reader, direct := wire.New(t, e.server.Addr()), e.locker(t), e.db(t, "")
		l := newLocker(t, e.through(t, proxy))
		r := rlock(t, reader, "x", auto)
		limited, cancel := context.WithCancel(ctx)
		defer cancel()
		var claims, promotions atomic.Int32
		late := make(chan string, 1)
		proxy.Interfere(func(query string) wire.Interference {
			switch {
			case strings.Contains(query, "AS taken") && claims.Add(1) == 2:
				late <- query
				cancel()
				return wire.Interference{Error: 2013, NotSent: true} // so it may yet be executed
			case strings.Contains(query, "AS alone") && promotions.Add(1) == 2:
				return wire.Interference{Error: 1213, NotSent: true} // so the name is claimed again
			}
			return wire.Interference{}
		})
		_, err := l.TryLock(limited, "x", mysqllock.WaitForever, auto)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, r.Unlock())
		k, err := reader.TryRLock(ctx, "x", time.Second, auto) // the claim was released
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
		_, err = direct.Exec(<-late)
		require.NoError(t, err)
		k, err = reader.TryRLock(ctx, "x", 3*time.Second, auto)
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
	})
}

// The guard of one lock does not delay those who share another, although MariaDB also locks the gap
// before its entry.
func TestSharedBesideAGuardOfAnother(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		rlock(t, a, "y", auto)
		other := acquire(t, b, "x", auto) // the entry of x is right behind that of y
		for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable, sql.LevelReadCommitted} {
			tx, err := e.db(t, "").BeginTx(ctx, &sql.TxOptions{Isolation: level})
			require.NoError(t, err)
			require.NoError(t, other.Guard(ctx, tx))
			k, err := e.locker(t).TryRLock(ctx, "y", 2*time.Second, auto)
			require.NoError(t, err, level)
			require.NoError(t, k.Unlock())
			require.NoError(t, tx.Rollback())
		}
	})
}

// A request whose statement was cut off behind a guard does not keep the next one out, once the
// transaction has ended.
func TestSharedAfterAGuard(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other, db := e.locker(t), e.locker(t), e.db(t, "")
		for range 3 { // the first attempts may not be fast enough to be cut off
			k := acquire(t, l, "x", mysqllock.AutoRenew)
			tx, err := db.Begin()
			require.NoError(t, err)
			defer tx.Rollback()
			require.NoError(t, k.Guard(ctx, tx))
			require.NoError(t, k.Unlock())
			_, err = l.TryRLock(ctx, "x", 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			require.NoError(t, tx.Rollback())
			theirs, err := other.TryRLock(ctx, "x", 5*time.Second, mysqllock.AutoRenew)
			require.NoError(t, err)
			ours, err := l.TryRLock(ctx, "x", 0, mysqllock.AutoRenew)
			require.NoError(t, err)
			require.NoError(t, ours.Unlock())
			require.NoError(t, theirs.Unlock())
		}
	})
}
