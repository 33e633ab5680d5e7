package mysqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// A process renews one row, whatever it holds: the rows of its locks are written once,
// when they are bound to its session.
func TestManyLocksAreKeptByOneRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		const locks = 1000
		l := e.locker(t, mysqllock.WithLease(3*time.Second))
		var held []*mysqllock.Lock
		for i := range locks {
			held = append(held, acquire(t, l, fmt.Sprint(i), mysqllock.AutoRenew))
		}
		db := e.db(t, "")
		bound := func() (n int) {
			require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM mysqllock WHERE session <> 0 AND name > x'01'").Scan(&n))
			return n
		}
		eventually(t, "all rows bound", func() bool { return bound() == locks })
		var session, rows string
		require.NoError(t, db.QueryRow("SELECT expires_at FROM mysqllock WHERE name BETWEEN x'00' AND x'01'").Scan(&session))
		expiries := "SELECT SUM(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires_at)) FROM mysqllock WHERE name > x'01'"
		require.NoError(t, db.QueryRow(expiries).Scan(&rows))
		before := l.Stats()
		time.Sleep(6 * time.Second)
		after := l.Stats()
		var sessionNow, rowsNow string
		require.NoError(t, db.QueryRow("SELECT expires_at FROM mysqllock WHERE name BETWEEN x'00' AND x'01'").Scan(&sessionNow))
		require.NoError(t, db.QueryRow(expiries).Scan(&rowsNow))
		require.Equal(t, rows, rowsNow, "no row was written")
		require.Greater(t, sessionNow, session)
		require.GreaterOrEqual(t, after.Renewals-before.Renewals, int64(4*locks))
		require.LessOrEqual(t, after.Statements-before.Statements, int64(6+2), "one each second, and one look each lease")
		for _, k := range held {
			require.NoError(t, k.Err())
		}
		require.True(t, requireHeld(t, e.locker(t), "1", true).ExpiresIn > time.Second, "operators see the session's time")
		listed, err := e.locker(t).List(ctx)
		require.NoError(t, err)
		require.Len(t, listed, locks)
	})
}

// A process that dies loses all locks that its session kept. The first contender marks
// the session dead; from then on each of its locks costs one statement.
func TestTakeoverFromADeadSession(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		dies := newLocker(t, e.through(t, proxy), mysqllock.WithLease(3*time.Second), mysqllock.WithoutSignal())
		var lost []*mysqllock.Lock
		for i := range 10 {
			lost = append(lost, acquire(t, dies, fmt.Sprint(i), mysqllock.AutoRenew))
		}
		probe := e.db(t, "")
		eventually(t, "the leases of the rows have ended", func() (ended bool) {
			require.NoError(t, probe.QueryRow("SELECT MAX(expires_at) < UTC_TIMESTAMP(6) AND MIN(session) > 0 FROM mysqllock WHERE name BETWEEN '0' AND '9'").Scan(&ended))
			return ended
		})
		other := e.locker(t)
		other.TryLock(ctx, "another", 0, mysqllock.AutoRenew) // the pool has been used
		before := other.Stats().Statements
		_, err := other.TryLock(ctx, "0", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.EqualValues(t, 2, other.Stats().Statements-before, "the refusal, and a look at the session")
		before = other.Stats().Statements
		_, err = other.TryLock(ctx, "1", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.EqualValues(t, 1, other.Stats().Statements-before, "the session is known to be alive")

		proxy.BlackHole(true)
		k, err := other.TryLock(ctx, "0", 20*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		for _, k := range lost {
			require.Error(t, k.Context().Err(), "reported before another owner has the first")
			require.ErrorIs(t, k.Err(), mysqllock.ErrLost)
		}
		for i := 1; i < 10; i++ {
			before := other.Stats().Statements
			next, err := other.TryLock(ctx, fmt.Sprint(i), 0, mysqllock.AutoRenew)
			require.NoError(t, err)
			require.EqualValues(t, 1, other.Stats().Statements-before)
			require.Greater(t, next.Token(), lost[i].Token())
		}
		proxy.BlackHole(false)
		time.Sleep(2 * time.Second) // in which the first process would renew, or release
		require.NoError(t, k.Err())
		requireHeld(t, e.locker(t), "1", true)
	})
}

// A contender first costs four statements: a refusal, a look at the session, its end, and
// the takeover.
func TestStatementsOfTheFirstTakeover(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		dies, err := mysqllock.New(e.through(t, proxy), mysqllock.WithLease(time.Second), mysqllock.WithoutSignal())
		require.NoError(t, err)
		t.Cleanup(func() { dies.Close() }) // its connections are dead, so it may fail
		acquire(t, dies, "x", mysqllock.AutoRenew)
		eventually(t, "a renewal", func() bool { return dies.Stats().Renewals > 1 })
		proxy.BlackHole(true)
		defer proxy.BlackHole(false)
		time.Sleep(2 * time.Second)
		other := e.locker(t)
		other.TryLock(ctx, "another", 0, mysqllock.AutoRenew)
		before := other.Stats().Statements
		_, err = other.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.EqualValues(t, 4, other.Stats().Statements-before)
	})
}

// A crowd that retries without a pause cannot make a holder lose its lock, although its
// statements keep the lock's row busy: they never touch the session's row.
func TestCrowdAtABoundLock(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		holder := e.locker(t, mysqllock.WithLease(time.Second))
		k := acquire(t, holder, "x", mysqllock.AutoRenew)
		eventually(t, "a renewal", func() bool { return holder.Stats().Renewals > 0 })
		until, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		done := make(chan int)
		for range 16 {
			l := e.locker(t)
			go func() {
				tries := 0
				for until.Err() == nil {
					if stolen, err := l.TryLock(ctx, "x", 0, mysqllock.AutoRenew); err == nil {
						stolen.Unlock()
						tries = -1 << 30
					}
					tries++
				}
				done <- tries
			}()
		}
		for range 16 {
			require.Positive(t, <-done, "refused, as often as it asked")
		}
		require.NoError(t, k.Err())
		require.Zero(t, holder.Stats().Lost)
	})
}

// ForceUnlock reaches a holder in another process at once if that listens, whatever keeps
// its lease; otherwise within a third of the lease.
func TestForceUnlockReachesTheHolder(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for name, c := range map[string]struct {
			lease   time.Duration
			old     bool // kept by the session
			listens bool
		}{
			"new, listens":           {mysqllock.AutoRenew, false, true},
			"old, listens":           {mysqllock.AutoRenew, true, true},
			"fixed, listens":         {time.Hour, false, true},
			"new, does not listen":   {mysqllock.AutoRenew, false, false},
			"old, does not listen":   {mysqllock.AutoRenew, true, false},
			"fixed, does not listen": {6 * time.Second, false, false},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holder, other := e.locker(t, mysqllock.WithLease(6*time.Second)), e.locker(t)
				k := acquire(t, holder, name, c.lease)
				if c.old {
					eventually(t, "a session", func() bool { return holder.Stats().Renewals > 0 })
				}
				if c.listens {
					acquire(t, other, name+" other", mysqllock.AutoRenew)
					waits, cancel := context.WithCancel(ctx)
					defer cancel()
					go holder.Lock(waits, name+" other", mysqllock.AutoRenew)
					eventually(t, "a listener", func() bool { return requireHeld(t, other, name+" other", true).Waiters > 0 })
					time.Sleep(100 * time.Millisecond)
				}
				start := time.Now()
				forced, err := other.ForceUnlock(ctx, name)
				require.NoError(t, err)
				require.True(t, forced)
				requireOver(t, k, mysqllock.ErrLost)
				took := time.Since(start)
				if c.listens {
					require.Less(t, took, time.Second, "a few milliseconds; a third of the lease without the signal")
				}
				require.Less(t, took, 4*time.Second, "a third of the lease, and what a busy machine adds")
				next, err := other.TryLock(ctx, name, 0, mysqllock.AutoRenew)
				require.NoError(t, err)
				require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
				require.NoError(t, next.Err())
			})
		}
	})
}

// A holder learns of a forced release even if the process that forces ends right after its
// commit.
func TestForceUnlockThatDies(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		holder, dies := e.locker(t, mysqllock.WithLease(6*time.Second)), newLocker(t, e.through(t, proxy))
		k := acquire(t, holder, "x", mysqllock.AutoRenew)
		eventually(t, "a session", func() bool { return holder.Stats().Renewals > 0 })
		short, cancel := context.WithCancel(ctx)
		defer cancel()
		var committed atomic.Pointer[time.Time]
		proxy.Interfere(func(query string) wire.Interference {
			if strings.HasPrefix(query, "COMMIT") {
				if now := time.Now(); committed.CompareAndSwap(nil, &now) {
					time.AfterFunc(time.Second, cancel)
				}
				return wire.Interference{Error: 2013} // it is executed
			}
			return wire.Interference{}
		})
		_, err := dies.ForceUnlock(short, "x")
		require.Error(t, err)
		start := *committed.Load()
		requireOver(t, k, mysqllock.ErrLost)
		require.Less(t, time.Since(start), 5*time.Second, "a third of the lease, and what a busy machine adds")
	})
}

// A Locker whose own lock was freed by a ForceUnlock of its own, which had no reply, learns of it at once.
func TestForceUnlockOfItsOwnWithoutReply(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		l := newLocker(t, e.through(t, proxy), mysqllock.WithLease(6*time.Second))
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		eventually(t, "a session", func() bool { return l.Stats().Renewals > 0 })
		proxy.Interfere(func(query string) wire.Interference {
			if strings.HasPrefix(query, "COMMIT") {
				return wire.Interference{Error: 2013} // it is executed
			}
			return wire.Interference{}
		})
		_, err := l.ForceUnlock(ctx, "x")
		require.ErrorContains(t, err, "2013")
		start := time.Now()
		requireOver(t, k, mysqllock.ErrLost)
		require.Less(t, time.Since(start), time.Second)
	})
}

// The holder checks its rows before a ForceUnlock that waits for a guard frees one of them, and
// learns of the loss at once nevertheless.
func TestForceUnlockBehindAGuardIsReported(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		holder, other := e.locker(t), e.locker(t)
		k := acquire(t, holder, "x", mysqllock.AutoRenew)
		acquire(t, other, "other", mysqllock.AutoRenew)
		waits, cancel := context.WithCancel(ctx)
		defer cancel()
		go holder.Lock(waits, "other", mysqllock.AutoRenew)
		eventually(t, "a listener", func() bool { return requireHeld(t, other, "other", true).Waiters > 0 })
		tx, err := e.db(t, "").BeginTx(ctx, nil)
		require.NoError(t, err)
		require.NoError(t, k.Guard(ctx, tx))
		time.AfterFunc(500*time.Millisecond, func() { tx.Commit() })
		_, err = other.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		start := time.Now()
		requireOver(t, k, mysqllock.ErrLost)
		require.Less(t, time.Since(start), 5*time.Second, "10 s without the signal")
	})
}

// The time until a holder that listens learns of a ForceUnlock. Its p99 is below 100 ms on an
// idle machine.
func TestForceUnlockSignal(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		rounds := 40
		if !testing.Short() {
			rounds = 200
		}
		holder, other := e.locker(t, mysqllock.WithPollInterval(time.Minute)), e.locker(t)
		acquire(t, other, "other", mysqllock.AutoRenew)
		waits, cancel := context.WithCancel(ctx)
		defer cancel()
		go holder.Lock(waits, "other", mysqllock.AutoRenew)
		eventually(t, "a listener", func() bool { return requireHeld(t, other, "other", true).Waiters > 0 })
		var took []time.Duration
		for range rounds {
			k := acquire(t, holder, "x", mysqllock.AutoRenew)
			start := time.Now()
			forced, err := other.ForceUnlock(ctx, "x")
			require.NoError(t, err)
			require.True(t, forced)
			requireOver(t, k, mysqllock.ErrLost)
			took = append(took, time.Since(start))
			k.Unlock()
		}
		slices.Sort(took)
		t.Logf("p50 %v, p99 %v, worst %v", took[rounds/2], took[rounds*99/100], took[rounds-1])
		require.Less(t, took[rounds*99/100], time.Second, "up to 5 s without the signal")
	})
}

// A session begins beside an open guard, whose transaction has a gap of the index locked on
// MariaDB; and a forced release is noted there.
func TestSessionBeginsBesideAGuard(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t, mysqllock.WithLease(3*time.Second)), e.locker(t)
		k, forced := acquire(t, l, "x", mysqllock.AutoRenew), acquire(t, other, "forced", mysqllock.AutoRenew)
		for _, k := range []*mysqllock.Lock{k, forced} {
			tx, err := e.db(t, "").BeginTx(ctx, nil)
			require.NoError(t, err)
			defer tx.Rollback()
			require.NoError(t, k.Guard(ctx, tx))
			if k == forced {
				require.NoError(t, tx.Rollback())
			}
		}
		freed, err := l.ForceUnlock(ctx, "forced")
		require.NoError(t, err)
		require.True(t, freed)
		e.bound(t, 1)
		require.Zero(t, l.Stats().RenewalErrors)
	})
}

// Close ends the session, and so frees what it could not release.
func TestCloseEndsTheSession(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t, mysqllock.WithLease(3*time.Second))
		acquire(t, l, "x", mysqllock.AutoRenew)
		eventually(t, "a session", func() bool { return l.Stats().Renewals > 1 })
		require.NoError(t, l.Close())
		var alive int
		require.NoError(t, e.db(t, "").QueryRow("SELECT COUNT(*) FROM mysqllock WHERE expires_at > UTC_TIMESTAMP(6)").Scan(&alive))
		require.Zero(t, alive)
	})
}

// Purge deletes dead sessions, and neither a live one nor a lock that it keeps.
func TestPurgeOfSessions(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		alive, ended := e.locker(t, mysqllock.WithLease(time.Second)), e.locker(t, mysqllock.WithLease(time.Second))
		k := acquire(t, alive, "kept", mysqllock.AutoRenew)
		acquire(t, ended, "released", mysqllock.AutoRenew)
		eventually(t, "two sessions", func() bool { return alive.Stats().Renewals > 2 && ended.Stats().Renewals > 2 })
		require.NoError(t, ended.Close())
		time.Sleep(1500 * time.Millisecond) // beyond the lease of the row that is kept
		n, err := alive.Purge(ctx, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		var sessions, rows int
		require.NoError(t, e.db(t, "").QueryRow("SELECT COUNT(IF(name < x'01' AND name <> x'', 1, NULL)), COUNT(IF(name > x'01', 1, NULL)) FROM mysqllock").Scan(&sessions, &rows))
		require.Equal(t, []int{1, 1}, []int{sessions, rows})
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
	})
}

// bound waits until a session keeps so many rows.
func (e env) bound(t *testing.T, rows int) {
	db := e.db(t, "")
	eventually(t, "rows bound to a session", func() bool {
		var n int
		require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM mysqllock WHERE session <> 0 AND name > x'01'").Scan(&n))
		return n == rows
	})
}

// The statement by which the next owner of the process takes a row over matches nothing in
// a session that lost its autocommit. The row is released all the same: its session, which
// keeps another lock, would keep it for ever.
func TestBoundRowThatCannotBeReplaced(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		db.SetMaxOpenConns(8)
		l := newLocker(t, db, mysqllock.WithLease(3*time.Second))
		kept, k := acquire(t, l, "kept", mysqllock.AutoRenew), acquire(t, l, "x", mysqllock.AutoRenew)
		e.bound(t, 2)
		next := make(chan error, 1)
		go func() {
			k, err := l.TryLock(ctx, "x", 20*time.Second, time.Minute) // longer than the row's lease
			if err == nil {
				err = k.Unlock()
			}
			next <- err
		}()
		eventually(t, "a waiter", func() bool { return l.Stats().Waiting == 1 })
		set := func(autocommit string) {
			conn, err := db.Conn(ctx)
			require.NoError(t, err)
			_, err = conn.ExecContext(ctx, "SET autocommit = "+autocommit)
			require.NoError(t, err)
			require.NoError(t, conn.Close())
		}
		set("0")
		require.NoError(t, k.Unlock())
		if err := <-next; err != nil {
			require.ErrorContains(t, err, "autocommit")
		}
		set("1")
		requireFree(t, e.locker(t), "x")
		require.NoError(t, kept.Err())
	})
}

// Guard finds no row in another database, and its pool does not answer. The hold is lost
// then, and its row released: the session, which keeps another lock, would keep it for ever.
func TestBoundRowThatGuardDoesNotFind(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		l := newLocker(t, e.through(t, proxy), mysqllock.WithLease(8*time.Second))
		kept, k := acquire(t, l, "kept", mysqllock.AutoRenew), acquire(t, l, "x", mysqllock.AutoRenew)
		e.bound(t, 2)
		elsewhere := env{server: e.server, database: mysqltest.NewDatabase(t, e.server)}
		require.NoError(t, elsewhere.locker(t).CreateTable(ctx))
		tx, err := elsewhere.db(t, "").BeginTx(ctx, nil)
		require.NoError(t, err)
		defer tx.Rollback()
		proxy.Freeze(true)
		require.ErrorIs(t, k.Guard(ctx, tx), mysqllock.ErrLost)
		proxy.Freeze(false)
		requireFree(t, e.locker(t), "x")
		require.NoError(t, kept.Err())
	})
}

// A statement that waits in the server for a locked row leaves the reserved connection to
// the renewals of the session, while the application has all others.
func TestNoWaitOnTheReservedConnection(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for what, wait := range map[string]func(kept, locked *mysqllock.Lock) error{
			"extend":  func(kept, _ *mysqllock.Lock) error { return kept.Extend(ctx, time.Second) },
			"release": func(_, locked *mysqllock.Lock) error { locked.Unlock(); return nil },
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				e := env{server: e.server, database: mysqltest.NewDatabase(t, e.server)}
				require.NoError(t, e.locker(t).CreateTable(ctx))
				db := e.db(t, "")
				db.SetMaxOpenConns(2)
				l := newLocker(t, db, mysqllock.WithLease(3*time.Second))
				kept, locked := acquire(t, l, "kept", mysqllock.AutoRenew), (*mysqllock.Lock)(nil)
				row := "kept"
				if what == "release" {
					row, locked = "locked", acquire(t, l, "locked", mysqllock.AutoRenew)
				}
				eventually(t, "a session", func() bool { return l.Stats().Renewals > 1 })
				all, err := db.Conn(ctx)
				require.NoError(t, err)
				tx, err := e.db(t, "").BeginTx(ctx, nil)
				require.NoError(t, err)
				defer tx.Rollback()
				_, err = tx.Exec("SELECT name FROM mysqllock WHERE name = '" + row + "' FOR UPDATE")
				require.NoError(t, err)
				done := make(chan error, 1)
				go func() { done <- wait(kept, locked) }()
				time.Sleep(8 * time.Second)
				require.NoError(t, kept.Err())
				require.NoError(t, tx.Rollback())
				require.NoError(t, all.Close())
				require.NoError(t, <-done)
				if locked != nil {
					requireFree(t, e.locker(t), "locked")
				}
				require.NoError(t, kept.Unlock())
			})
		}
	})
}

// While the application has all other connections, a session does not begin: its INSERT may
// wait for a transaction that has locked the gap, and no row could be renewed meanwhile.
func TestSessionThatCannotBegin(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for _, pool := range []int{1, 2} {
			t.Run(fmt.Sprint("pool of ", pool), func(t *testing.T) {
				e := env{e.server, mysqltest.NewDatabase(t, e.server)}
				require.NoError(t, e.locker(t).CreateTable(ctx))
				db := e.db(t, "")
				db.SetMaxOpenConns(pool)
				l := newLocker(t, db, mysqllock.WithLease(3*time.Second))
				k := acquire(t, l, "x", mysqllock.AutoRenew)
				var others []*sql.Conn
				for range pool - 1 {
					other, err := db.Conn(ctx)
					require.NoError(t, err)
					others = append(others, other)
				}
				tx, err := e.db(t, "").BeginTx(ctx, nil)
				require.NoError(t, err)
				defer tx.Rollback()
				_, err = tx.Exec("SELECT name FROM mysqllock WHERE name = 'a' FOR UPDATE") // there is none
				require.NoError(t, err)
				time.Sleep(6 * time.Second)
				require.NoError(t, k.Err())
				require.NoError(t, tx.Rollback())
				for _, other := range others {
					require.NoError(t, other.Close())
				}
				if pool > 1 {
					e.bound(t, 1)
				}
				require.NoError(t, k.Unlock())
				require.Zero(t, l.Stats().RenewalErrors)
			})
		}
	})
}
