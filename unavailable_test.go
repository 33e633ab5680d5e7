package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// The errors of an acquire: one sentinel for each thing that can be in the way,
// whatever the wait, and the same for callers that queue behind another goroutine.

var errLeaving = errors.New("the caller leaves")

// An ending is how a call ends that does not get the lock.
type ending struct {
	wait   time.Duration
	cancel time.Duration // the context ends after so long; 0: it does not
}

var endings = map[string]ending{
	"no wait":               {},
	"1 ms":                  {wait: time.Millisecond},
	"100 ms":                {wait: 100 * time.Millisecond},
	"1 s":                   {wait: time.Second},
	"context, 50 ms":        {wait: mysqllock.WaitForever, cancel: 50 * time.Millisecond},
	"context, 1 s":          {wait: time.Minute, cancel: time.Second},
	"context before answer": {wait: mysqllock.WaitForever, cancel: 5 * time.Millisecond},
}

func (c ending) try(l *mysqllock.Locker, name string) error {
	ctx := ctx
	if c.cancel > 0 {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		defer time.AfterFunc(c.cancel, func() { cancel(errLeaving) }).Stop()
	}
	k, err := l.TryLock(ctx, name, c.wait, mysqllock.AutoRenew)
	if err == nil {
		k.Unlock()
	}
	return err
}

// requireClass requires that the error has one sentinel, and the caller's cause
// if and only if the caller's context ended.
func (c ending) assertClass(t *testing.T, err, is, isNot error) {
	t.Helper()
	assert.ErrorIs(t, err, is)
	assert.NotErrorIs(t, err, isNot)
	assert.NotErrorIs(t, err, context.DeadlineExceeded, "no caller has set a deadline")
	if c.cancel > 0 {
		assert.ErrorIs(t, err, errLeaving)
	}
}

// connected returns a pool that has n connections already: on a busy machine the
// first statement on a new one can take longer than a short wait.
func (e env) connected(t *testing.T, n int) *sql.DB {
	db := e.db(t, "")
	db.SetMaxIdleConns(n)
	conns := make([]*sql.Conn, n)
	for i := range conns {
		var err error
		conns[i], err = db.Conn(ctx)
		require.NoError(t, err)
	}
	for _, conn := range conns {
		require.NoError(t, conn.Close())
	}
	return db
}

// crowd calls from many goroutines at once.
func (c ending) crowd(l *mysqllock.Locker, name string, n int) []error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { errs[i] = c.try(l, name) })
	}
	wg.Wait()
	return errs
}

func TestDatabaseThatCannotBeAsked(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for fault, make := range map[string]func(t *testing.T) *mysqllock.Locker{
			"dead": func(t *testing.T) *mysqllock.Locker {
				proxy := wire.New(t, e.server.Addr())
				db := e.through(t, proxy)
				proxy.Refuse(true)
				return newLocker(t, db)
			},
			"died": func(t *testing.T) *mysqllock.Locker {
				proxy := wire.New(t, e.server.Addr())
				l := newLocker(t, e.through(t, proxy))
				require.NoError(t, acquire(t, l, "before", mysqllock.AutoRenew).Unlock())
				proxy.Refuse(true)
				proxy.Cut()
				return l
			},
			"black hole": func(t *testing.T) *mysqllock.Locker {
				proxy := wire.New(t, e.server.Addr())
				l := newLocker(t, e.through(t, proxy))
				require.NoError(t, acquire(t, l, "before", mysqllock.AutoRenew).Unlock())
				proxy.BlackHole(true)
				t.Cleanup(func() { proxy.BlackHole(false) })
				return l
			},
			"pool used up": func(t *testing.T) *mysqllock.Locker {
				db := e.db(t, "")
				db.SetMaxOpenConns(4)
				l := newLocker(t, db)
				require.NoError(t, acquire(t, l, "before", mysqllock.AutoRenew).Unlock())
				for range 4 {
					conn, err := db.Conn(ctx)
					require.NoError(t, err)
					t.Cleanup(func() { conn.Close() })
				}
				return l
			},
		} {
			t.Run(fault, func(t *testing.T) {
				t.Parallel()
				l := make(t)
				for name, c := range endings {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						c.assertClass(t, c.try(l, "alone, "+name), mysqllock.ErrUnavailable, mysqllock.ErrNotAcquired)
						for _, err := range c.crowd(l, "crowd, "+name, 50) {
							c.assertClass(t, err, mysqllock.ErrUnavailable, mysqllock.ErrNotAcquired)
						}
					})
				}
			})
		}
	})
}

// While another owner holds the lock, or a transaction has its row locked, the
// database is not to blame, however many ask at once.
func TestLockThatIsBusy(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for busy, make := range map[string]func(t *testing.T, name string){
			"held elsewhere": func(t *testing.T, name string) {
				acquire(t, e.locker(t), name, mysqllock.AutoRenew)
			},
			"row locked": func(t *testing.T, name string) {
				require.NoError(t, acquire(t, e.locker(t), name, mysqllock.AutoRenew).Unlock())
				tx, err := e.db(t, "").Begin()
				require.NoError(t, err)
				t.Cleanup(func() { tx.Rollback() })
				require.NoError(t, tx.QueryRow("SELECT name FROM mysqllock WHERE name = ? FOR UPDATE", name).Scan(new(string)))
			},
			"guarded": func(t *testing.T, name string) {
				k := acquire(t, e.locker(t), name, mysqllock.AutoRenew)
				tx, err := e.db(t, "").Begin()
				require.NoError(t, err)
				t.Cleanup(func() { tx.Rollback() })
				require.NoError(t, k.Guard(ctx, tx))
				require.NoError(t, k.Unlock())
			},
		} {
			t.Run(busy, func(t *testing.T) {
				l := newLocker(t, e.connected(t, len(endings)))
				for name, c := range endings {
					if name == "context before answer" {
						continue // nobody knows yet what is in the way
					}
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						name := busy + ", " + name
						make(t, name)
						c.assertClass(t, c.try(l, name), mysqllock.ErrNotAcquired, mysqllock.ErrUnavailable)
						for _, err := range c.crowd(l, name, 20) {
							c.assertClass(t, err, mysqllock.ErrNotAcquired, mysqllock.ErrUnavailable)
						}
					})
				}
			})
		}
		t.Run("hot", func(t *testing.T) {
			t.Parallel()
			lockers := []*mysqllock.Locker{newLocker(t, e.connected(t, 4)), newLocker(t, e.connected(t, 4))}
			k := acquire(t, lockers[0], "hot", mysqllock.AutoRenew)
			time.AfterFunc(200*time.Millisecond, func() { assert.NoError(t, k.Unlock()) })
			var refused atomic.Int64
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
						k, err := lockers[i%2].TryLock(ctx, "hot", rand.N(20*time.Millisecond), mysqllock.AutoRenew)
						if err == nil {
							time.Sleep(rand.N(3 * time.Millisecond))
							assert.NoError(t, k.Unlock())
							continue
						}
						refused.Add(1)
						assert.ErrorIs(t, err, mysqllock.ErrNotAcquired)
						assert.NotErrorIs(t, err, mysqllock.ErrUnavailable)
					}
				})
			}
			wg.Wait()
			for _, l := range lockers {
				require.Zero(t, l.Stats().Unavailable)
			}
			require.Equal(t, refused.Load(), lockers[0].Stats().NotAcquired+lockers[1].Stats().NotAcquired)
		})
	})
}

// A wait that runs out behind a locked row is exceeded by 100 ms at most; on a
// machine that is busy, at least once in a few tries.
func TestShortWaitsBehindALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, tx.QueryRow("SELECT name FROM mysqllock WHERE name = 'x' FOR UPDATE").Scan(new(string)))
		for _, wait := range []time.Duration{time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond, 300 * time.Millisecond} {
			best := time.Hour
			for range 10 {
				// A prompt answer first: then the caller's own goroutine asks.
				require.NoError(t, acquire(t, l, fmt.Sprint("free", wait), mysqllock.AutoRenew).Unlock())
				start := time.Now()
				_, err := l.TryLock(ctx, "x", wait, mysqllock.AutoRenew)
				took := time.Since(start)
				if errors.Is(err, mysqllock.ErrUnavailable) {
					continue // the machine was too busy for an answer in 100 ms
				}
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
				require.GreaterOrEqual(t, took, wait)
				best = min(best, took)
			}
			require.LessOrEqual(t, best, wait+100*time.Millisecond)
		}
	})
}

// waitingStatements returns how many connections the Lockers of a database have
// on the server, and how many of their statements have waited for more
// than a second for a row that a transaction has locked. (On MariaDB, a statement that
// passes over such a row waits for an instant, too.)
func waitingStatements(t testing.TB, server *sql.DB, e env) (connections, waiting int) {
	t.Helper()
	require.NoError(t, server.QueryRow("SELECT COUNT(*) FROM information_schema.processlist WHERE db = ?", e.database).Scan(&connections))
	const waits = "SELECT COUNT(*) FROM information_schema.innodb_trx AS t JOIN information_schema.processlist AS p " +
		"ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND t.trx_wait_started <= NOW() - INTERVAL 2 SECOND AND p.db = ?"
	require.NoError(t, server.QueryRow(waits, e.database).Scan(&waiting))
	return connections, waiting
}

// onOwnServers is onEach for a test that needs many connections, or counts them.
func onOwnServers(t *testing.T, test func(t *testing.T, e env)) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := mysqltest.New(t, kind)
			e := env{server: s, database: mysqltest.NewDatabase(t, s)}
			require.NoError(t, e.locker(t).CreateTable(ctx))
			test(t, e)
		})
	}
}

// Statements that wait for rows which transactions have locked do not pile up in
// the server, for one row or for many, and no connection is opened in the place
// of one that waits.
func TestStatementsBehindLockedRows(t *testing.T) {
	const names = 30
	onOwnServers(t, func(t *testing.T, e env) {
		for pool, c := range map[string]struct{ open, most int }{
			"one":       {1, 0},
			"five":      {5, 1},
			"unlimited": {0, 8},
		} {
			t.Run(pool, func(t *testing.T) {
				server, err := sql.Open("mysql", e.server.DSN("", ""))
				require.NoError(t, err)
				defer server.Close()
				holder := newLocker(t, e.db(t, ""))
				tx, err := server.Begin()
				require.NoError(t, err)
				defer tx.Rollback()
				_, err = tx.Exec("USE " + e.database)
				require.NoError(t, err)
				guarded := make([]*mysqllock.Lock, names)
				for i := range guarded {
					guarded[i] = acquire(t, holder, fmt.Sprint(pool, i), mysqllock.AutoRenew)
					require.NoError(t, guarded[i].Guard(ctx, tx))
				}
				for _, k := range guarded {
					require.NoError(t, k.Unlock())
				}
				require.NoError(t, holder.Close())
				var before int
				eventually(t, "only the transaction's connection", func() bool {
					before, _ = waitingStatements(t, server, e)
					return before <= 4 // of other Lockers and of the transaction
				})

				crowdBehindLockedRows(t, e, server, tx, pool, c.open, c.most, before)
			})
		}
	})
}

// The same for locks that have no row yet. Their statements need the high-water
// row, which a Purge has locked, and the gap in the index where the row will be.
func TestFirstGrantsBehindLockedRows(t *testing.T) {
	onOwnServers(t, func(t *testing.T, e env) {
		_, err := e.locker(t).Purge(ctx, time.Hour)
		require.NoError(t, err)
		for what, lock := range map[string]string{
			"high-water row": "SELECT name FROM mysqllock WHERE name = '' FOR UPDATE",
			"gap":            "SELECT name FROM mysqllock WHERE name > 'g' AND name < 'h' FOR UPDATE",
		} {
			for pool, c := range map[string]struct{ open, most int }{
				"one":       {1, 1},
				"five":      {5, 2},
				"unlimited": {0, 8},
			} {
				t.Run(what+", "+pool, func(t *testing.T) {
					server, err := sql.Open("mysql", e.server.DSN("", ""))
					require.NoError(t, err)
					defer server.Close()
					tx, err := server.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
					require.NoError(t, err)
					defer tx.Rollback()
					_, err = tx.Exec("USE " + e.database)
					require.NoError(t, err)
					_, err = tx.Exec(lock)
					require.NoError(t, err)
					before, _ := waitingStatements(t, server, e)
					crowdBehindLockedRows(t, e, server, tx, "gap of "+what+pool, c.open, c.most, before)
				})
			}
		}
	})
}

// A first grant whose connection has died keeps its slot no longer than the server
// needs to say that it does not execute the statement.
func TestFirstGrantOnADeadConnection(t *testing.T) {
	t.Run("four", func(t *testing.T) { testFirstGrantOnADeadConnection(t, 4) })
	t.Run("one", func(t *testing.T) { testFirstGrantOnADeadConnection(t, 1) })
}

func testFirstGrantOnADeadConnection(t *testing.T, pool int) {
	onOwnServers(t, func(t *testing.T, e env) {
		dying := wire.New(t, e.server.Addr())
		proxy := wire.New(t, dying.Addr())
		db := e.through(t, proxy)
		db.SetMaxOpenConns(pool)
		db.SetMaxIdleConns(1)
		l := newLocker(t, db, mysqllock.WithLease(3*time.Second))
		require.NoError(t, acquire(t, l, "before", mysqllock.AutoRenew).Unlock())

		// Its statement waits in the server, which drops it, and nobody hears of that.
		server := e.db(t, "")
		tx, err := server.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("SELECT name FROM mysqllock WHERE name > 'g' AND name < 'h' FOR UPDATE")
		require.NoError(t, err)
		served := make(chan struct{})
		go func() {
			k, err := l.TryLock(ctx, "gap", mysqllock.WaitForever, mysqllock.AutoRenew)
			if assert.NoError(t, err) {
				assert.NoError(t, k.Unlock())
			}
			close(served)
		}()
		var id int64
		eventually(t, "its statement", func() bool {
			return server.QueryRow("SELECT id FROM information_schema.processlist WHERE info LIKE 'INSERT%' AND db = ?", e.database).Scan(&id) == nil
		})
		proxy.Redirect(e.server.Addr())
		dying.BlackHole(true)
		t.Cleanup(func() { dying.BlackHole(false) })
		_, err = server.Exec(fmt.Sprint("KILL ", id))
		require.NoError(t, err)
		require.NoError(t, tx.Rollback())
		select {
		case <-served:
		case <-time.After(30 * time.Second): // without the check, it would be 55 s
			t.Fatal("the lock is not granted")
		}
		require.NoError(t, acquire(t, l, "gaps", mysqllock.AutoRenew).Unlock())
	})
}

// crowdBehindLockedRows has many callers ask, and give up, for 30 locks whose rows tx
// has locked, on a pool of so many connections. It requires that no more than most of
// their statements wait in the server, which has before other connections.
func crowdBehindLockedRows(t *testing.T, e env, server *sql.DB, tx *sql.Tx, prefix string, open, most, before int) {
	const names = 30
	db := e.db(t, "")
	db.SetMaxOpenConns(open)
	l := newLocker(t, db)
	var wg sync.WaitGroup
	end := time.Now().Add(4 * time.Second)
	for i := range 2 * names {
		wg.Go(func() {
			for time.Now().Before(end) {
				ctx, cancel := context.WithTimeout(ctx, time.Millisecond+rand.N(300*time.Millisecond))
				wait := mysqllock.WaitForever
				if rand.N(2) == 0 {
					wait = rand.N(200 * time.Millisecond)
				}
				_, err := l.TryLock(ctx, fmt.Sprint(prefix, i%names), wait, mysqllock.AutoRenew)
				cancel()
				assert.Error(t, err)
			}
		})
	}
	// A connection that was closed stays in the list for a moment.
	mostConnections, mostWaiting, last := 0, 0, 0
	for time.Now().Before(end) {
		connections, waiting := waitingStatements(t, server, e)
		mostConnections, mostWaiting = max(mostConnections, min(last, connections)-before), max(mostWaiting, waiting)
		last = connections
		time.Sleep(20 * time.Millisecond)
	}
	wg.Wait()
	t.Logf("at most %d connections, %d statements that waited", mostConnections, mostWaiting)
	require.LessOrEqual(t, mostWaiting, most)
	if open > 0 {
		require.LessOrEqual(t, mostConnections, open)
	}

	// What was left behind is undone when it is granted.
	require.NoError(t, tx.Rollback())
	for i := range names {
		require.NoError(t, acquire(t, l, fmt.Sprint(prefix, i), mysqllock.AutoRenew).Unlock())
	}
}

// A statement that was cut off behind a locked row keeps waiting in the server.
// Until it has ended there, the pool opens no connection in place of the one that
// it was sent on.
func TestConnectionCutOffBehindALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		server, err := sql.Open("mysql", e.server.DSN("", ""))
		require.NoError(t, err)
		defer server.Close()
		before, _ := waitingStatements(t, server, e)
		db := e.db(t, "")
		db.SetMaxOpenConns(8)
		l := newLocker(t, db)
		for _, name := range []string{"a", "b"} {
			require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock())
		}
		tx, err := server.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		var rows int
		require.NoError(t, tx.QueryRow("SELECT COUNT(*) FROM "+e.database+".mysqllock WHERE name <> '' FOR UPDATE").Scan(&rows))

		// The last answer was prompt: these ask on the caller's goroutine, which has to
		// cut them off.
		for _, name := range []string{"a", "b", "a", "b"} {
			gone, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			_, err = l.TryLock(gone, name, mysqllock.WaitForever, mysqllock.AutoRenew)
			cancel()
			if !errors.Is(err, mysqllock.ErrUnavailable) { // the machine may be too busy for an answer in 100 ms
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			}
		}
		// The application uses up the pool, as far as it may.
		var conns []*sql.Conn
		defer func() {
			for _, conn := range conns {
				conn.Close()
			}
		}()
		for {
			gone, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			conn, err := db.Conn(gone)
			cancel()
			if err != nil {
				break
			}
			conns = append(conns, conn)
		}
		connections, waiting := waitingStatements(t, server, e)
		t.Logf("%d connections, %d before, %d of the application", connections, before, len(conns))
		require.LessOrEqual(t, waiting, 2, "one for each row")
		require.LessOrEqual(t, connections-before, 8)
		require.NoError(t, tx.Rollback())
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		conns = nil
		for _, name := range []string{"a", "b"} {
			require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock())
		}
		eventually(t, "the pool has all its connections again", func() bool { return db.Stats().InUse == 0 })
	})
}

// A waiter whose turn comes with the Unlock of a holder in the same process reports
// what it met itself, not that the lock was held before its turn.
func TestDatabaseThatCannotBeAskedAfterAHold(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		db.SetMaxOpenConns(4)
		l := newLocker(t, db, mysqllock.WithoutHandoff())
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		// The fourth is the one that is kept for what is held, once nothing is.
		for range 4 {
			go func() {
				if conn, err := db.Conn(ctx); err == nil {
					time.AfterFunc(5*time.Second, func() { conn.Close() })
				}
			}()
		}
		eventually(t, "the application waits for a connection", func() bool { return db.Stats().WaitCount == 1 })
		result := make(chan error, 1)
		go func() {
			_, err := l.TryLock(ctx, "x", 1300*time.Millisecond, mysqllock.AutoRenew)
			result <- err
		}()
		eventually(t, "a waiter", func() bool { return l.Stats().Waiting == 1 })
		require.NoError(t, k.Unlock())
		err := <-result
		require.ErrorIs(t, err, mysqllock.ErrUnavailable)
		require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
	})
}

// A call that does not wait, while another goroutine waits for the lock, reports
// the outage that this one has met.
func TestDatabaseThatCannotBeAskedBesideAWaiter(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		acquire(t, e.locker(t), "x", mysqllock.AutoRenew)
		proxy := wire.New(t, e.server.Addr())
		l := newLocker(t, e.through(t, proxy), mysqllock.WithPollInterval(100*time.Millisecond))
		gone, cancel := context.WithCancel(ctx)
		waited := make(chan error, 1)
		go func() {
			_, err := l.TryLock(gone, "x", mysqllock.WaitForever, mysqllock.AutoRenew)
			waited <- err
		}()
		eventually(t, "listed", func() bool {
			info, err := l.Inspect(ctx, "x")
			require.NoError(t, err)
			return info.Waiters == 1
		})
		_, err := l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NotErrorIs(t, err, mysqllock.ErrUnavailable)

		proxy.Refuse(true)
		proxy.Cut()
		eventually(t, "the outage is known", func() bool {
			_, err := l.TryLock(ctx, "x", time.Millisecond, mysqllock.AutoRenew)
			return errors.Is(err, mysqllock.ErrUnavailable)
		})
		_, err = l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrUnavailable)
		require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
		cancel()
		require.ErrorIs(t, <-waited, mysqllock.ErrUnavailable)

		proxy.Refuse(false)
	})
}

// The same behind a row that a transaction has locked while another owner holds the
// lock: one statement at most waits for it, also if calls go on to be cut off.
func TestCutOffBehindALockedRowThatIsHeld(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		server, err := sql.Open("mysql", e.server.DSN("", ""))
		require.NoError(t, err)
		defer server.Close()
		acquire(t, e.locker(t), "x", time.Hour)
		db := e.db(t, "")
		db.SetMaxOpenConns(8)
		l := newLocker(t, db)
		tx, err := server.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, tx.QueryRow("SELECT COUNT(*) FROM "+e.database+".mysqllock WHERE name = 'x' FOR UPDATE").Scan(new(int)))
		for range 6 {
			// A prompt answer first: then the caller's own goroutine asks.
			require.NoError(t, acquire(t, l, "free", mysqllock.AutoRenew).Unlock())
			gone, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			_, err = l.TryLock(gone, "x", mysqllock.WaitForever, mysqllock.AutoRenew)
			cancel()
			require.Error(t, err)
			time.Sleep(1300 * time.Millisecond) // the last one is probed after a second
		}
		time.Sleep(2 * time.Second)
		connections, waiting := waitingStatements(t, server, e)
		t.Logf("%d connections, %d statements that wait", connections, waiting)
		require.LessOrEqual(t, waiting, 1)
	})
}

// If the connection of the pool is dead, a call for a new name that nobody holds is not refused.
func TestNewNameOnADeadConnection(t *testing.T) {
	calls := map[string]func(l *mysqllock.Locker) error{
		"exclusive": func(l *mysqllock.Locker) error { _, err := l.TryLock(ctx, "x", 0, mysqllock.AutoRenew); return err },
		"shared":    func(l *mysqllock.Locker) error { _, err := l.TryRLock(ctx, "r", 0, mysqllock.AutoRenew); return err },
		"permit": func(l *mysqllock.Locker) error {
			_, err := l.Semaphore("s", 1).TryAcquire(ctx, 0, mysqllock.AutoRenew)
			return err
		},
		"set": func(l *mysqllock.Locker) error {
			_, err := l.TryLockAll(ctx, []string{"a", "b"}, 0, mysqllock.AutoRenew)
			return err
		},
	}
	onEach(t, func(t *testing.T, e env) {
		for name, call := range calls {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dying := wire.New(t, e.server.Addr())
				proxy := wire.New(t, dying.Addr())
				db := e.through(t, proxy)
				db.SetMaxIdleConns(1)
				l := newLocker(t, db)
				require.NoError(t, acquire(t, l, "before "+name, mysqllock.AutoRenew).Unlock())
				proxy.Redirect(e.server.Addr())
				dying.BlackHole(true)
				t.Cleanup(func() { dying.BlackHole(false) })
				err := call(l)
				require.ErrorIs(t, err, mysqllock.ErrUnavailable)
				require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
			})
		}
	})
}

// A first grant that the limit of the only connection has cut off gives up its slot when the server has
// ended it, so that other new names can be acquired.
func TestFirstGrantInAPoolOfOne(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		db.SetMaxOpenConns(1)
		l := newLocker(t, db, mysqllock.WithLease(2*time.Second))
		held := acquire(t, l, "held", mysqllock.AutoRenew)
		tx, err := e.db(t, "").BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("SELECT name FROM mysqllock WHERE name > 'g' AND name < 'h' FOR UPDATE")
		require.NoError(t, err)
		_, err = l.TryLock(ctx, "gap", time.Second, mysqllock.AutoRenew)
		require.Error(t, err)
		require.NoError(t, tx.Rollback())
		k, err := l.TryLock(ctx, "z", 15*time.Second, mysqllock.AutoRenew) // without the check, it would be 55 s
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
		require.NoError(t, held.Unlock())
	})
}

// If readTimeout in the DSN ends a statement behind a locked row, the next one does not wait beside it.
func TestReadTimeoutBehindALockedRow(t *testing.T) {
	calls := map[string]func(l *mysqllock.Locker, held *mysqllock.Lock) error{
		"acquire": func(l *mysqllock.Locker, _ *mysqllock.Lock) error {
			k, err := l.TryLock(ctx, "x", mysqllock.WaitForever, mysqllock.AutoRenew)
			if err == nil {
				err = k.Unlock()
			}
			return err
		},
		"Extend": func(_ *mysqllock.Locker, held *mysqllock.Lock) error { return held.Extend(ctx, time.Hour) },
	}
	onEach(t, func(t *testing.T, e env) {
		for name, call := range calls {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				e := env{server: e.server, database: mysqltest.NewDatabase(t, e.server)}
				require.NoError(t, e.locker(t).CreateTable(ctx))
				server, err := sql.Open("mysql", e.server.DSN("", ""))
				require.NoError(t, err)
				defer server.Close()
				db := e.db(t, "readTimeout=1500ms")
				db.SetMaxOpenConns(8)
				l := newLocker(t, db)
				held := acquire(t, l, "x", mysqllock.AutoRenew)
				if name == "acquire" {
					require.NoError(t, held.Unlock())
				}
				tx := begin(t, e)
				require.NoError(t, tx.QueryRow("SELECT COUNT(*) FROM mysqllock WHERE name = 'x' FOR UPDATE").Scan(new(int)))
				ended := make(chan error, 1)
				go func() { ended <- call(l, held) }()
				time.Sleep(7 * time.Second)
				connections, waiting := waitingStatements(t, server, e)
				t.Logf("%d connections, %d statements that wait", connections, waiting)
				require.Equal(t, 1, waiting)
				require.NoError(t, tx.Rollback())
				select {
				case err := <-ended:
					require.NoError(t, err)
				case <-time.After(10 * time.Second):
					t.Fatal("not served")
				}
			})
		}
	})
}

// While a backup or an ALTER has the table locked, statements that are cut off do not accumulate in
// the server: on MySQL, they used up max_connections.
func TestStatementsBehindALockedTable(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		server := e.db(t, "")
		l := e.locker(t)
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
		acquire(t, l, "held", mysqllock.AutoRenew)
		conn, err := server.Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(ctx, "LOCK TABLES mysqllock WRITE")
		require.NoError(t, err)
		stop := make(chan struct{})
		var callers sync.WaitGroup
		for i := range 20 {
			callers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					_, err := l.TryLock(ctx, fmt.Sprint("x", i), 0, mysqllock.AutoRenew)
					if !assert.ErrorIs(t, err, mysqllock.ErrUnavailable) {
						return
					}
				}
			})
		}
		var counts []int
		for range 3 {
			time.Sleep(4 * time.Second)
			n, _ := waitingStatements(t, server, e)
			counts = append(counts, n)
		}
		t.Log(counts, "connections")
		close(stop)
		callers.Wait()
		_, err = conn.ExecContext(ctx, "UNLOCK TABLES")
		require.NoError(t, err)
		require.LessOrEqual(t, counts[2], counts[0]+20)
		for i := range 20 {
			requireFree(t, l, fmt.Sprint("x", i)) // what was sent meanwhile was undone
		}
	})
}

// A waiter that met an outage, and whose probe then found the row locked by a transaction,
// reports the latter.
func TestBusyAfterAnOutage(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		k := acquire(t, e.locker(t), "x", 3*time.Second)
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, k.Guard(ctx, tx))
		proxy := wire.New(t, e.server.Addr())
		l := newLocker(t, e.through(t, proxy), mysqllock.WithPollInterval(100*time.Millisecond))
		result := make(chan error, 1)
		go func() {
			_, err := l.TryLock(ctx, "x", 9*time.Second, mysqllock.AutoRenew)
			result <- err
		}()
		time.Sleep(time.Second) // it is refused, and waits
		proxy.Refuse(true)
		proxy.Cut()
		time.Sleep(3 * time.Second) // the poller fails, and the lease ends
		proxy.Refuse(false)
		err = <-result
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NotErrorIs(t, err, mysqllock.ErrUnavailable)
	})
}

// The time limit of a release, of whatever kind, is not a deadline of the caller.
func TestTimeLimitOfReleases(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy := wire.New(t, e.server.Addr())
		l := newLocker(t, e.through(t, proxy))
		permit, err := l.Semaphore("x", 1).TryAcquire(ctx, 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		set, after := acquireAll(t, l, "a", "b"), acquire(t, l, "after", mysqllock.AutoRenew)
		releases := map[string]func() error{
			"lock":        acquire(t, l, "x", mysqllock.AutoRenew).Unlock,
			"shared":      rlock(t, l, "shared", mysqllock.AutoRenew).Unlock,
			"permit":      permit.Unlock,
			"set":         set.Unlock,
			"UnlockAfter": func() error { return after.UnlockAfter(time.Hour) },
		}
		proxy.BlackHole(true)
		defer proxy.BlackHole(false)
		var wg sync.WaitGroup
		for name, release := range releases {
			wg.Go(func() {
				err := release()
				assert.ErrorContains(t, err, "the database did not answer in time", name)
				assert.NotErrorIs(t, err, context.DeadlineExceeded, name)
			})
		}
		wg.Wait()
	})
}

// The time limit of the DSN for opening a connection is none of the caller's context, and the error
// names what could not be reached.
func TestDialTimeout(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := newLocker(t, e.db(t, "timeout=1ns"))
		for _, wait := range []time.Duration{0, 300 * time.Millisecond, time.Second} {
			_, err := l.TryLock(ctx, "x", wait, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "wait %v", wait)
			require.ErrorContains(t, err, "i/o timeout", "wait %v", wait)
		}
	})
}
