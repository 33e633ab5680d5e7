package mysqllock_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// requireFree waits until nobody holds the lock, for a fraction of its lease.
func requireFree(t testing.TB, l *mysqllock.Locker, name string) {
	t.Helper()
	eventually(t, "nobody holds "+name, func() bool {
		info, err := l.Inspect(ctx, name)
		return err == nil && !info.Held
	})
}

// An answer that is lost leaves no lock behind, and costs no lock.
func TestLostReplies(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		other := e.locker(t)
		// Each on a Locker of its own, so that nothing else is sent.
		for what, test := range map[string]func(t *testing.T, name string, l *mysqllock.Locker, proxy *wire.Proxy){
			"acquire": func(t *testing.T, name string, l *mysqllock.Locker, proxy *wire.Proxy) {
				proxy.CutAfterNextCommand()
				_, err := l.TryLock(ctx, name, 0, mysqllock.AutoRenew)
				require.Error(t, err)
				require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
				requireFree(t, other, name)
			},
			"acquire and wait": func(t *testing.T, name string, l *mysqllock.Locker, proxy *wire.Proxy) {
				proxy.CutBeforeNextReply()
				k, err := l.TryLock(ctx, name, 10*time.Second, mysqllock.AutoRenew)
				require.NoError(t, err, "tried again within the wait, and not kept out by its own first try")
				require.NoError(t, k.Unlock())
			},
			"unlock": func(t *testing.T, name string, l *mysqllock.Locker, proxy *wire.Proxy) {
				k := acquire(t, l, name, mysqllock.AutoRenew)
				proxy.CutBeforeNextReply()
				require.NoError(t, k.Unlock(), "tried again")
				requireFree(t, other, name)
			},
			"extend": func(t *testing.T, name string, l *mysqllock.Locker, proxy *wire.Proxy) {
				k := acquire(t, l, name, time.Minute)
				proxy.CutBeforeNextReply()
				require.NoError(t, k.Extend(ctx, time.Hour))
				require.NoError(t, k.Unlock())
			},
			"renew": func(t *testing.T, name string, l *mysqllock.Locker, proxy *wire.Proxy) {
				k := acquire(t, l, name, mysqllock.AutoRenew)
				proxy.CutBeforeNextReply()
				eventually(t, "a failed renewal, and later ones", func() bool {
					return l.Stats().RenewalErrors == 1 && l.Stats().Renewals >= 2
				})
				require.NoError(t, k.Unlock())
			},
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				proxy := wire.New(t, e.server.Addr())
				l := newLocker(t, e.through(t, proxy), mysqllock.WithLease(3*time.Second))
				require.NoError(t, acquire(t, l, what, mysqllock.AutoRenew).Unlock())
				test(t, what, l, proxy)
			})
		}
	})
}

// A statement that waits for a row outlives its caller: it is undone when it is
// granted, and that wakes who waits in this process.
func TestBehindALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, db := e.locker(t), e.db(t, "")
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
		tx, err := db.Begin()
		require.NoError(t, err)
		_, err = tx.Exec("UPDATE mysqllock SET holder = 'somebody' WHERE name = 'x'")
		require.NoError(t, err)

		start := time.Now()
		_, err = l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.Less(t, time.Since(start), time.Second)
		gone, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		_, err = l.TryLock(gone, "x", time.Minute, mysqllock.AutoRenew)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		got := make(chan *mysqllock.Lock)
		go func() { got <- acquire(t, l, "x", mysqllock.AutoRenew) }()
		eventually(t, "a waiter", func() bool { return l.Stats().Waiting == 1 })
		require.NoError(t, tx.Rollback())
		k := <-got
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
		requireFree(t, l, "x")
	})
}

// A database that does not answer: loss is told in time without it, by each
// fault that a network has.
func TestLossNeedsNoAnswer(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for fault, strike := range map[string]func(*wire.Proxy, bool){
			"black hole": (*wire.Proxy).BlackHole,
			"frozen":     (*wire.Proxy).Freeze,
			"refused": func(p *wire.Proxy, on bool) {
				p.Refuse(on)
				p.Cut()
			},
		} {
			t.Run(fault, func(t *testing.T) {
				t.Parallel()
				proxy := wire.New(t, e.server.Addr())
				l, other := newLocker(t, e.through(t, proxy), mysqllock.WithLease(1500*time.Millisecond)), e.locker(t)
				name := "lost by " + fault
				k := acquire(t, l, name, mysqllock.AutoRenew)
				kept := acquire(t, l, name+", but for a moment", mysqllock.AutoRenew)
				require.NoError(t, kept.Unlock())

				// The rival gets the lock as soon as the database gives it to him:
				// the holder must have been told by then.
				strike(proxy, true)
				next, err := other.TryLock(ctx, name, 20*time.Second, mysqllock.AutoRenew)
				require.NoError(t, err)
				require.ErrorIs(t, context.Cause(k.Context()), mysqllock.ErrLost)
				require.Greater(t, next.Token(), k.Token())
				require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
				strike(proxy, false)

				// It recovers without help, and what it sent in vain does no harm.
				again := acquire(t, l, name+", again", mysqllock.AutoRenew)
				require.NoError(t, again.Unlock())
				require.NoError(t, next.Err())
				require.Equal(t, next.Token(), requireHeld(t, other, name, true).Token)
			})
		}
	})
}

// A lease counts from before the request was sent, however late the answer is:
// whoever gets the lock when the database gives it to him finds the holder told.
func TestLeaseCountsFromTheRequest(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		const lease, delay = 4 * time.Second, 1200 * time.Millisecond
		proxy := wire.New(t, e.server.Addr())
		l, other := newLocker(t, e.through(t, proxy)), e.locker(t)
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock()) // connected
		proxy.SetDelay(delay)                                                // each way
		k := acquire(t, l, "x", lease)
		require.NoError(t, k.Err())
		next, err := other.TryLock(ctx, "x", 20*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.ErrorIs(t, context.Cause(k.Context()), mysqllock.ErrLost)
		require.NoError(t, next.Unlock())
		proxy.SetDelay(0)
	})
}

// The server dies and comes back: whoever waits gets the lock without help.
func TestServerRestart(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.New(t, kind)
			e := env{server, mysqltest.NewDatabase(t, server)}
			l, other := e.locker(t), e.locker(t)
			require.NoError(t, l.CreateTable(ctx))
			k := acquire(t, l, "x", mysqllock.AutoRenew)
			got := make(chan error)
			go func() {
				_, err := other.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
				got <- err
			}()
			eventually(t, "a waiter", func() bool { return other.Stats().Waiting == 1 })
			require.NoError(t, server.Kill())
			_, err := l.TryLock(ctx, "y", 0, mysqllock.AutoRenew)
			require.Error(t, err)
			require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
			started := time.Now()
			unlocked := make(chan error)
			go func() { unlocked <- k.Unlock() }()
			require.NoError(t, server.Restart())
			answering := time.Now()
			<-unlocked // known or not, the background gets it done
			require.NoError(t, <-got)
			served := time.Since(answering)
			t.Logf("served %v after the server had answered", served)
			require.Less(t, served, 10*time.Second, "restarted within %v", answering.Sub(started))
		})
	}
}

// A paused process finds itself without its lock: Err and Guard compare the
// clock at the call. Here the server is paused, which is the same for the rows;
// the examples pause a process.
func TestServerPaused(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.New(t, kind)
			e := env{server, mysqltest.NewDatabase(t, server)}
			l := e.locker(t, mysqllock.WithLease(time.Second))
			require.NoError(t, l.CreateTable(ctx))
			k := acquire(t, l, "x", mysqllock.AutoRenew)
			require.NoError(t, server.Pause())
			requireOver(t, k, mysqllock.ErrLost)
			_, err := l.TryLock(ctx, "y", 100*time.Millisecond, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			require.NoError(t, server.Continue())
			for _, name := range []string{"x", "y"} {
				requireFree(t, l, name) // what was sent meanwhile was undone
				require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock())
			}
		})
	}
}

// A table that somebody has locked keeps everybody waiting: loss is told in time,
// and what waits or was sent meanwhile comes right when the table is free.
func TestLockedTable(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t, mysqllock.WithLease(1500*time.Millisecond)), e.locker(t)
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		require.NoError(t, acquire(t, other, "y", mysqllock.AutoRenew).Unlock())
		conn, err := e.db(t, "").Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(ctx, "LOCK TABLES mysqllock WRITE")
		require.NoError(t, err)

		_, err = l.TryLock(ctx, "y", 100*time.Millisecond, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		got := make(chan *mysqllock.Lock)
		go func() { got <- acquire(t, other, "x", mysqllock.AutoRenew) }()
		eventually(t, "a waiter", func() bool { return other.Stats().Waiting == 1 })
		requireOver(t, k, mysqllock.ErrLost)

		_, err = conn.ExecContext(ctx, "UNLOCK TABLES")
		require.NoError(t, err)
		next := <-got
		require.Greater(t, next.Token(), k.Token())
		require.NoError(t, next.Unlock())
		requireFree(t, other, "y") // what was sent meanwhile was undone
	})
}

// KILL and KILL QUERY of whatever the library does.
func TestKilledConnections(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		root := e.db(t, "")
		l := e.locker(t, mysqllock.WithLease(3*time.Second))
		k := acquire(t, l, "held", mysqllock.AutoRenew)
		stop := make(chan struct{})
		var killer sync.WaitGroup
		killer.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				rows, err := root.Query("SELECT id FROM information_schema.processlist WHERE db = ? AND id <> CONNECTION_ID()", e.database)
				if !assert.NoError(t, err) {
					return
				}
				for rows.Next() {
					var id int
					assert.NoError(t, rows.Scan(&id))
					kill := "KILL"
					if i%2 == 0 {
						kill = "KILL QUERY"
					}
					root.Exec(fmt.Sprintf("%s %d", kill, id)) // it may have ended meanwhile
				}
				rows.Close()
			}
		})
		for i, start := 0, time.Now(); time.Since(start) < 2*time.Second; i++ {
			x, err := l.TryLock(ctx, fmt.Sprint("x", i%3), 10*time.Second, mysqllock.AutoRenew)
			require.NoError(t, err)
			if err := x.Unlock(); err != nil {
				require.NotErrorIs(t, err, mysqllock.ErrLost)
			}
		}
		close(stop)
		killer.Wait()
		require.NoError(t, k.Err())
		for i := range 3 {
			requireFree(t, l, fmt.Sprint("x", i))
		}
	})
}

// Guard: nobody takes over before the transaction ends, however long it lasts,
// and a stale holder is refused.
func TestGuard(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other, db := e.locker(t, mysqllock.WithLease(3*time.Second)), e.locker(t), e.db(t, "")
		begin := func() mysqllock.Queryer {
			tx, err := db.Begin()
			require.NoError(t, err)
			t.Cleanup(func() { tx.Rollback() })
			return tx
		}
		commit := func(tx mysqllock.Queryer) { require.NoError(t, tx.(interface{ Commit() error }).Commit()) }

		// AutoRenew: not lost, however long; others of the process are renewed as well.
		k, beside := acquire(t, l, "auto", mysqllock.AutoRenew), acquire(t, l, "beside", mysqllock.AutoRenew)
		tx, second := begin(), begin()
		require.NoError(t, k.Guard(ctx, tx))
		require.NoError(t, k.Guard(ctx, second), "several at once")
		time.Sleep(3500 * time.Millisecond)
		require.NoError(t, k.Err())
		require.NoError(t, beside.Err())
		require.NoError(t, k.Extend(ctx, time.Second))
		commit(second)

		// By force neither, and the renewals go on meanwhile.
		short, cancel := context.WithTimeout(ctx, 3500*time.Millisecond)
		defer cancel()
		_, err := other.ForceUnlock(short, "auto")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NoError(t, k.Err())
		require.NoError(t, k.Guard(ctx, tx))

		// Unlocked before the commit: still nobody.
		require.NoError(t, k.Unlock())
		_, err = other.TryLock(ctx, "auto", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		committed := make(chan time.Time, 1)
		time.AfterFunc(200*time.Millisecond, func() {
			committed <- time.Now()
			commit(tx)
		})
		next, err := other.TryLock(ctx, "auto", 20*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.False(t, time.Now().Before(<-committed))
		require.Greater(t, next.Token(), k.Token())
		require.ErrorIs(t, k.Guard(ctx, begin()), mysqllock.ErrNotHeld)

		// A fixed lease ends under its transaction, which may yet commit.
		fixed := acquire(t, l, "fixed", 300*time.Millisecond)
		tx = begin()
		require.NoError(t, fixed.Guard(ctx, tx))
		requireOver(t, fixed, mysqllock.ErrLost)
		_, err = other.TryLock(ctx, "fixed", time.Second, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.ErrorIs(t, fixed.Guard(ctx, begin()), mysqllock.ErrLost)
		commit(tx)
		require.NoError(t, acquire(t, other, "fixed", mysqllock.AutoRenew).Unlock())

		// Taken away while the holder does not know it yet: the row knows.
		stale := acquire(t, e.locker(t), "stale", time.Minute)
		_, err = other.ForceUnlock(ctx, "stale")
		require.NoError(t, err)
		require.NoError(t, stale.Err())
		require.ErrorIs(t, stale.Guard(ctx, begin()), mysqllock.ErrLost)
		acquire(t, other, "stale", mysqllock.AutoRenew)
		require.ErrorIs(t, stale.Guard(ctx, begin()), mysqllock.ErrLost)

		require.ErrorContains(t, beside.Guard(ctx, db), "a pool is no transaction")
		conn, err := db.Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, beside.Guard(ctx, conn))
	})
}

// The notifier carries a release to other processes long before their poll.
func TestNotifier(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		bus := &bus{}
		poll := mysqllock.WithPollInterval(time.Hour)
		l, other := e.locker(t, poll, mysqllock.WithNotifier(bus)), e.locker(t, poll, mysqllock.WithNotifier(bus))
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		got := make(chan error)
		go func() {
			k, err := other.Lock(ctx, "x", mysqllock.AutoRenew)
			if err == nil {
				err = k.Unlock()
			}
			got <- err
		}()
		eventually(t, "a subscriber", func() bool { return bus.subscribers() > 0 && other.Stats().Waiting == 1 })
		require.NoError(t, k.Unlock())
		require.NoError(t, <-got)
	})
}

// bus is a notifier within the process.
type bus struct {
	mu    sync.Mutex
	hears []func(string)
}

func (b *bus) subscribers() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.hears)
}

func (b *bus) Publish(_ context.Context, name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, released := range b.hears {
		released(name)
	}
	return nil
}

func (b *bus) Subscribe(ctx context.Context, released func(string)) error {
	b.mu.Lock()
	b.hears = append(b.hears, released)
	b.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// What the log says: one error when a lock is lost, one warning when renewals
// fail, one word when they succeed again, nothing else; and no SQL.
func TestLog(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		var log logged
		proxy := wire.New(t, e.server.Addr())
		l := newLocker(t, e.through(t, proxy), mysqllock.WithLease(2*time.Second), mysqllock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
		require.Empty(t, log.String())
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		proxy.BlackHole(true)
		requireOver(t, k, mysqllock.ErrLost)
		proxy.BlackHole(false)
		eventually(t, "an error, and a warning", func() bool {
			return strings.Contains(log.String(), "level=ERROR") && strings.Contains(log.String(), "level=WARN")
		})
		require.Contains(t, log.String(), fmt.Sprintf(`level=ERROR msg="mysqllock: lock lost" name=x token=%d reason="not renewed"`, k.Token()))
		require.Contains(t, log.String(), `level=WARN msg="mysqllock: renewal failed, trying again" locks=1 first=x err=`)
		require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
		require.NotContains(t, log.String(), "UPDATE")
	})
}

func TestLogOfAnOutageThatPasses(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		var log logged
		l := e.locker(t, mysqllock.WithLease(9*time.Second), mysqllock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		db := e.db(t, "")
		_, err := db.Exec("RENAME TABLE mysqllock TO away")
		require.NoError(t, err)
		eventually(t, "a warning", func() bool { return strings.Contains(log.String(), "level=WARN") }) // after 3 s
		_, err = db.Exec("RENAME TABLE away TO mysqllock")
		require.NoError(t, err)
		eventually(t, "a recovery", func() bool { // before 8 s have passed, or it is lost
			return strings.Contains(log.String(), `level=INFO msg="mysqllock: renewals succeed again" locks=1 first=x`)
		})
		require.NoError(t, k.Unlock())
		require.Equal(t, 2, strings.Count(log.String(), "\n"), log.String())
	})
}

type logged struct {
	mu  sync.Mutex
	all strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// In a pool of one connection, a call that waits behind a locked row does not
// cost the process the other locks that it holds.
func TestPoolOfOne(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		db.SetMaxOpenConns(1)
		l := newLocker(t, db, mysqllock.WithLease(3*time.Second))
		require.NoError(t, acquire(t, l, "stuck", mysqllock.AutoRenew).Unlock())
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("UPDATE mysqllock SET holder = 'somebody' WHERE name = 'stuck'")
		require.NoError(t, err)
		k := acquire(t, l, "held", mysqllock.AutoRenew)
		_, err = l.TryLock(ctx, "stuck", 5*time.Second, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, k.Err())
		require.NoError(t, tx.Rollback())
		require.NoError(t, acquire(t, l, "stuck", mysqllock.AutoRenew).Unlock())
		require.NoError(t, k.Unlock())
	})
}

// A database that does not answer for a while costs no lock if it does so before
// the trust ends, although the application uses up the pool: the connection that
// was kept for renewals is not given up for one that cannot be had.
func TestHiccup(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for name, busy := range map[string]int{"pool idle": 0, "pool used up": 50} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				proxy := wire.New(t, e.server.Addr())
				db := e.through(t, proxy)
				db.SetMaxOpenConns(3)
				l := newLocker(t, db, mysqllock.WithLease(6*time.Second))
				k := acquire(t, l, name, mysqllock.AutoRenew)
				storm, calm := context.WithCancel(ctx)
				var wg sync.WaitGroup
				for range busy {
					wg.Go(func() {
						for storm.Err() == nil {
							db.ExecContext(storm, "DO SLEEP(0.2)")
						}
					})
				}
				eventually(t, "a renewal", func() bool { return l.Stats().Renewals == 1 })
				proxy.Freeze(true)
				time.Sleep(3700 * time.Millisecond) // the next is due at 2 s and has 1.5 s, the trust ends at 5.4 s
				proxy.Freeze(false)
				eventually(t, "later ones", func() bool { return l.Stats().Renewals >= 3 || k.Err() != nil })
				require.NoError(t, k.Err())
				calm()
				wg.Wait()
				require.NoError(t, k.Unlock())
			})
		}
	})
}

// A panicConn is a connection of a driver with a hook that panics once, on a
// goroutine on which the application can recover from that.
type panicConn struct {
	driver.Conn
	due *atomic.Bool
}

func (c panicConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if c.due.Load() && bytes.Contains(debug.Stack(), []byte(".panics(")) {
		c.due.Store(false)
		panic("hook")
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c panicConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

type panicConnector struct {
	driver.Connector
	due *atomic.Bool
}

func (c panicConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return panicConn{conn, c.due}, err
}

// A panic in the driver, from which the application recovers, costs neither the
// name its turn nor the pool its connection.
func TestPanicOnAConnection(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		config, err := mysql.ParseDSN(e.server.DSN(e.database, ""))
		require.NoError(t, err)
		connector, err := mysql.NewConnector(config)
		require.NoError(t, err)
		var due atomic.Bool
		db := sql.OpenDB(panicConnector{connector, &due})
		t.Cleanup(func() { db.Close() })
		db.SetMaxOpenConns(1)
		l := newLocker(t, db)
		due.Store(true)
		for due.Load() { // until the server was quick, so that it is asked on the caller's goroutine
			panics(t, l)
		}
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
	})
}

func panics(t *testing.T, l *mysqllock.Locker) {
	defer func() {
		if got := recover(); got != nil {
			require.Equal(t, "hook", got)
		}
	}()
	k, err := l.Lock(ctx, "x", mysqllock.AutoRenew)
	require.NoError(t, err)
	go k.Unlock() // not here: only an acquire shall panic
	<-k.Context().Done()
}
