package mysqllock_test

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
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
			"renew the session": func(t *testing.T, name string, l *mysqllock.Locker, proxy *wire.Proxy) {
				k := acquire(t, l, name, mysqllock.AutoRenew)
				eventually(t, "a renewal", func() bool { return l.Stats().Renewals > 0 })
				proxy.CutBeforeNextReply()
				eventually(t, "a failed renewal, and later ones", func() bool {
					return l.Stats().RenewalErrors == 1 && l.Stats().Renewals >= 3
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

// A proxy that loses its backend in mid-statement reports an error of its client
// library, though the statement was executed. Nothing stays held, and nobody waits
// for a lease that nobody has.
func TestLostBackend(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		const soon = 10 * time.Second // a lease takes 30 s
		other := e.locker(t)
		for what, test := range map[string]func(t *testing.T, name string, l *mysqllock.Locker, lose func()){
			"acquire": func(t *testing.T, name string, l *mysqllock.Locker, lose func()) {
				lose()
				_, err := l.TryLock(ctx, name, 0, mysqllock.AutoRenew)
				require.ErrorContains(t, err, "Lost connection")
				require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
				_, err = other.TryLock(ctx, name, soon, mysqllock.AutoRenew)
				require.NoError(t, err)
			},
			"acquire and wait": func(t *testing.T, name string, l *mysqllock.Locker, lose func()) {
				lose()
				k, err := l.TryLock(ctx, name, soon, mysqllock.AutoRenew)
				require.NoError(t, err)
				require.NoError(t, k.Unlock())
			},
			"unlock": func(t *testing.T, name string, l *mysqllock.Locker, lose func()) {
				k := acquire(t, l, name, mysqllock.AutoRenew)
				lose()
				require.NoError(t, k.Unlock(), "tried again")
				requireHeld(t, other, name, false)
			},
			"extend": func(t *testing.T, name string, l *mysqllock.Locker, lose func()) {
				k := acquire(t, l, name, time.Minute)
				lose()
				require.NoError(t, k.Extend(ctx, time.Hour), "tried again")
				require.NoError(t, k.Unlock())
			},
		} {
			numbers := []uint16{2013, 9001}
			if what != "acquire" { // others that pass
				numbers = append(numbers, 1226, 3032, 3100, 3101)
			}
			for _, number := range numbers {
				name := fmt.Sprint(what, " ", number)
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					proxy := wire.New(t, e.server.Addr())
					l := newLocker(t, e.through(t, proxy))
					require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock())
					test(t, name, l, func() { proxy.FailNextReply(number, "Lost connection to MySQL server during query") })
				})
			}
		}
	})
}

// An account that has as many connections as it may is waited for, as a server
// that has.
func TestConnectionLimitOfTheAccount(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		account := e.account(t, "SELECT, INSERT, UPDATE", "*")
		_, err := e.db(t, "").Exec(fmt.Sprintf("ALTER USER %s WITH MAX_USER_CONNECTIONS 2", account.User))
		require.NoError(t, err)
		db := openAs(t, account)
		var conns []*sql.Conn
		for range 2 {
			conn, err := db.Conn(ctx)
			require.NoError(t, err)
			conns = append(conns, conn)
		}
		l := newLocker(t, openAs(t, account))
		_, err = l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		var refused *mysql.MySQLError
		require.ErrorAs(t, err, &refused)
		require.EqualValues(t, 1226, refused.Number)

		ended := waitingOut(t, l)
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		require.NoError(t, db.Close())
		require.NoError(t, <-ended)
	})
}

// waitingOut starts an acquire and release of "x", which must not end at once, and
// returns where their error will be.
func waitingOut(t *testing.T, l *mysqllock.Locker) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		k, err := l.TryLock(ctx, "x", 20*time.Second, mysqllock.AutoRenew)
		if err == nil {
			err = k.Unlock()
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		require.FailNow(t, "not waited", "%v", err)
	case <-time.After(300 * time.Millisecond):
	}
	return ended
}

// A server that is put into offline mode throws everybody out. Calls wait until it
// is back, or until the pool leads to another one.
func TestOfflineMode(t *testing.T) {
	t.Parallel()
	server := mysqltest.New(t, "mysql")
	e := env{server, mysqltest.NewDatabase(t, server)}
	require.NoError(t, e.locker(t).CreateTable(ctx))
	account := e.account(t, "SELECT, INSERT, UPDATE", "*")
	l := newLocker(t, openAs(t, account))
	require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
	root := e.db(t, "")
	_, err := root.Exec("SET GLOBAL offline_mode = ON")
	require.NoError(t, err)
	ended := waitingOut(t, l)
	_, err = root.Exec("SET GLOBAL offline_mode = OFF")
	require.NoError(t, err)
	require.NoError(t, <-ended)
}

// A proxy that has lost a reply may send the statement again: the grant of the
// first one is the answer to the second.
func TestRepeatedAcquire(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		// In a small pool, no statement may wait for a row: others are used.
		for _, limit := range []int{4, 2} {
			t.Run(fmt.Sprint("pool of ", limit), func(t *testing.T) { testRepeatedAcquire(t, e, limit) })
		}
	})
}

func testRepeatedAcquire(t *testing.T, e env, limit int) {
	name := fmt.Sprint("x ", limit)
	proxy := wire.New(t, e.server.Addr())
	db := e.through(t, proxy)
	db.SetMaxOpenConns(limit)
	l, other, third := newLocker(t, db), e.locker(t), e.locker(t)
	require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock()) // checks the session
	granted := func(name string, lease time.Duration) {
		t.Helper()
		before, err := other.Inspect(ctx, name)
		require.NoError(t, err)
		proxy.Repeat(true)
		k, err := l.TryLock(ctx, name, 0, lease)
		proxy.Repeat(false)
		require.NoError(t, err)
		require.NoError(t, k.Err())
		require.Greater(t, k.Token(), before.Token)
		require.Equal(t, k.Token(), requireHeld(t, other, name, true).Token)
		_, err = other.TryLock(ctx, name, 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, k.Unlock())
		requireHeld(t, other, name, false)
	}
	granted("new "+name, mysqllock.AutoRenew)
	granted(name, time.Minute)
	if limit == 4 {
		eventually(t, "not prepared", func() bool { // a busy machine may use several connections
			queries := len(proxy.Queries())
			granted(name, mysqllock.AutoRenew)
			return len(proxy.Queries()) == queries
		})
	}

	// A call that waits, so the wait queue decides. Those behind it stay enlisted.
	k := acquire(t, other, name, mysqllock.AutoRenew)
	got := waitingSeenBy(t, other, l, name, 1)
	var behind <-chan *mysqllock.Lock
	if limit == 4 { // or l does not listen, and need not be the first
		behind = waiting(t, third, name, 2)
	}
	proxy.Repeat(true)
	require.NoError(t, k.Unlock())
	next := get(t, got)
	proxy.Repeat(false)
	require.Greater(t, next.Token(), k.Token())
	info := requireHeld(t, other, name, true)
	require.Equal(t, next.Token(), info.Token)
	if behind != nil {
		require.Equal(t, 1, info.Waiters)
	}
	require.NoError(t, next.Unlock())
	if behind != nil {
		require.NoError(t, get(t, behind).Unlock())
	}

	// One that takes over inside the process, for a lease that the row does not cover.
	short := acquire(t, l, name, 3*time.Second)
	passed := waitingFor(t, l, name, time.Hour)
	proxy.Repeat(true)
	require.NoError(t, short.Unlock())
	last := get(t, passed)
	proxy.Repeat(false)
	require.Greater(t, last.Token(), short.Token())
	require.Equal(t, last.Token(), requireHeld(t, other, name, true).Token)
	require.NoError(t, last.Unlock())
}

// A copy of an acquire that arrives when the lock is in use does not change its token: Guard would not
// find the row, and the copy would wait for an open guard.
func TestLateCopyOfAnAcquire(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for _, limit := range []int{4, 2} {
			t.Run(fmt.Sprint("pool of ", limit), func(t *testing.T) {
				proxy := wire.New(t, e.server.Addr())
				pool, server := e.through(t, proxy), e.db(t, "")
				pool.SetMaxOpenConns(limit)
				l, other, name := newLocker(t, pool), e.locker(t), fmt.Sprint("x ", limit)
				requireUnchanged := func(k *mysqllock.Lock) {
					t.Helper()
					tx, err := server.Begin()
					require.NoError(t, err)
					defer tx.Rollback()
					require.NoError(t, k.Guard(ctx, tx))
					executeCopies(t, server, proxy)
					require.Equal(t, k.Token(), requireHeld(t, other, name, true).Token)
					require.NoError(t, k.Guard(ctx, tx))
					proxy.Reset()
				}
				k := acquire(t, l, name, 3*time.Second)
				requireUnchanged(k)
				next := waitingFor(t, l, name, time.Hour)
				require.NoError(t, k.Unlock())
				k = get(t, next)
				requireUnchanged(k) // it replaced the owner
				require.NoError(t, k.Unlock())

				k = acquire(t, other, name, mysqllock.AutoRenew)
				next = waitingSeenBy(t, other, l, name, 1)
				require.NoError(t, k.UnlockAfter(time.Nanosecond)) // which grants nothing
				k = get(t, next)
				requireUnchanged(k)
				require.NoError(t, k.Unlock())
			})
		}
	})
}

// executeCopies executes the acquires that went through a proxy again.
func executeCopies(t *testing.T, server *sql.DB, proxy *wire.Proxy) {
	t.Helper()
	copies := 0
	for _, query := range proxy.Queries() {
		if strings.Contains(query, "acquired_at =") && !strings.Contains(query, "released_at =") {
			_, err := server.Exec(query)
			require.NoError(t, err)
			copies++
		}
	}
	require.NotZero(t, copies)
}

// requireRowOf requires that a lock can be guarded, and that its row has its token.
func requireRowOf(t *testing.T, server *sql.DB, l *mysqllock.Locker, k *mysqllock.Lock) {
	t.Helper()
	tx, err := server.Begin()
	require.NoError(t, err)
	require.NoError(t, k.Guard(ctx, tx))
	require.NoError(t, tx.Rollback())
	require.Equal(t, k.Token(), requireHeld(t, l, k.Name(), true).Token)
}

// Batches that a proxy sends twice, and copies of them that arrive later, leave each lock the token
// that its holder has.
func TestCopiesOfBatches(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy, server := wire.New(t, e.server.Addr()), e.db(t, "")
		l, names := newLocker(t, e.through(t, proxy)), numbered("x ", 40)
		for _, rows := range []string{"new", "free"} {
			proxy.Reset()
			proxy.Repeat(true)
			set, err := l.TryLockAll(ctx, names[:20], 5*time.Second, mysqllock.AutoRenew)
			require.NoError(t, err, rows)
			var all sync.WaitGroup
			locks := make([]*mysqllock.Lock, 20)
			for i, name := range names[20:] {
				all.Go(func() {
					k, err := l.TryLock(ctx, name, 5*time.Second, mysqllock.AutoRenew)
					assert.NoError(t, err)
					locks[i] = k
				})
			}
			all.Wait()
			proxy.Repeat(false)
			executeCopies(t, server, proxy)
			for _, name := range names[:20] {
				requireRowOf(t, server, l, set.Lock(name))
			}
			for _, k := range locks {
				require.NotNil(t, k)
				requireRowOf(t, server, l, k)
				require.NoError(t, k.Unlock())
			}
			require.NoError(t, set.Unlock())
		}
	})
}

// Locks of a batch have the tokens of their rows even if the copy that is answered has found more of
// them free than the first.
func TestCopyOfABatchThatTakesMore(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy, server := wire.New(t, e.server.Addr()), e.db(t, "")
		l, names := newLocker(t, e.through(t, proxy)), []string{"a", "b"}
		set, err := l.TryLockAll(ctx, names, 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, set.Unlock())
		first := false
		proxy.Interfere(func(query string) wire.Interference {
			if !first && strings.Contains(query, "l.acquired_at =") {
				first = true
				tx, err := server.Begin()
				assert.NoError(t, err)
				_, err = tx.Exec("SELECT name FROM mysqllock FORCE INDEX (PRIMARY) WHERE name = 'b' FOR UPDATE")
				assert.NoError(t, err)
				_, err = server.Exec(query)
				assert.NoError(t, err)
				assert.NoError(t, tx.Rollback())
			}
			return wire.Interference{}
		})
		set, err = l.TryLockAll(ctx, names, 5*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		proxy.Interfere(nil)
		require.True(t, first)
		for _, name := range names {
			requireRowOf(t, server, l, set.Lock(name))
		}
		require.NoError(t, set.Unlock())
	})
}

// A release that a proxy sends twice is one. A lock that was taken away by force is
// lost all the same.
func TestRepeatedRelease(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for _, limit := range []int{4, 1} { // in a pool of one, no release waits for a row
			t.Run(fmt.Sprint("pool of ", limit), func(t *testing.T) {
				name := fmt.Sprint("x ", limit)
				proxy := wire.New(t, e.server.Addr())
				db := e.through(t, proxy)
				db.SetMaxOpenConns(limit)
				l, other := newLocker(t, db), e.locker(t)
				release := func() {
					k := acquire(t, l, name, mysqllock.AutoRenew)
					proxy.Repeat(true)
					err := k.Unlock()
					proxy.Repeat(false)
					require.NoError(t, err)
					requireHeld(t, other, name, false)
				}
				release()
				for range 110 { // until the statement is prepared
					require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock())
				}
				release()

				k := acquire(t, l, name, mysqllock.AutoRenew)
				held, err := other.ForceUnlock(ctx, name)
				require.NoError(t, err)
				require.True(t, held)
				proxy.Repeat(true)
				err = k.Unlock()
				proxy.Repeat(false)
				require.ErrorIs(t, err, mysqllock.ErrLost)
			})
		}
	})
}

// waitingFor starts to wait for a lock that this process holds.
func waitingFor(t *testing.T, l *mysqllock.Locker, name string, lease time.Duration) <-chan *mysqllock.Lock {
	t.Helper()
	got := make(chan *mysqllock.Lock, 1)
	go func() {
		defer close(got)
		if k, err := l.TryLock(ctx, name, time.Minute, lease); assert.NoError(t, err) {
			got <- k
		}
	}()
	eventually(t, "not waiting", func() bool { return l.Stats().Waiting == 1 })
	return got
}

// A statement that waits for a row outlives its caller: it is undone when it is
// granted, which wakes the waiters of this process.
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

// A loss is reported in time without an answer from the database, for each kind of network
// fault.
func TestLossNeedsNoAnswer(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for fault, unlist := range map[string]func(*wire.Proxy, bool){
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

				// The rival gets the lock as soon as the database grants it: by then the
				// holder's loss must have been reported.
				unlist(proxy, true)
				next, err := other.TryLock(ctx, name, 20*time.Second, mysqllock.AutoRenew)
				require.NoError(t, err)
				require.ErrorIs(t, context.Cause(k.Context()), mysqllock.ErrLost)
				require.Greater(t, next.Token(), k.Token())
				require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
				unlist(proxy, false)

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
// a caller that is granted the lock finds that the holder's loss has been reported.
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

// The server dies and comes back: a process that waits gets the lock without help.
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
			require.ErrorIs(t, err, mysqllock.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			require.NoError(t, server.Continue())
			for _, name := range []string{"x", "y"} {
				requireFree(t, l, name) // what was sent meanwhile was undone
				require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock())
			}
		})
	}
}

// While the table is locked, every statement waits: losses are reported in time, and waiting
// calls and statements sent meanwhile are served or undone when the table is free.
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
		require.ErrorIs(t, err, mysqllock.ErrUnavailable)
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

// MariaDB 11.8 may answer an UPDATE that was killed with "0 rows", as if the row had
// another owner. That is no loss, and leaves no row behind. TestKilledStatement has
// each case by itself.
func TestKilledUpdates(t *testing.T) {
	t.Parallel()
	if err := mysqltest.Find(mysqltest.MariaDB118); err != nil {
		t.Skip("NOT TESTED: ", err)
	}
	server := mysqltest.Shared(t, mysqltest.MariaDB118)
	e := env{server, mysqltest.NewDatabase(t, server)}
	observer := e.locker(t)
	require.NoError(t, observer.CreateTable(ctx))
	const workers, length = 4, 8 * time.Second

	var killed atomic.Int64
	end, stop := context.WithCancel(ctx)
	var killers sync.WaitGroup
	for range 2 {
		root := e.db(t, "")
		killers.Go(func() {
			for ; end.Err() == nil; time.Sleep(time.Millisecond) {
				var ids []int
				err := sqlx.NewDb(root, "mysql").Select(&ids,
					"SELECT id FROM information_schema.processlist WHERE db = ? AND id <> CONNECTION_ID() AND info LIKE 'UPDATE%'", e.database)
				if end.Err() == nil && err != nil && !isKilled(err) {
					assert.NoError(t, err)
				}
				for _, id := range ids {
					if _, err := root.Exec(fmt.Sprint("KILL QUERY ", id)); err == nil {
						killed.Add(1)
					}
				}
			}
		})
	}
	var cycles, closed atomic.Int64
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			for start, n := time.Now(), 0; time.Since(start) < length; n++ {
				// Its rows are held for a minute if they are not released.
				l, err := mysqllock.New(e.db(t, ""), mysqllock.WithLease(time.Minute))
				if !assert.NoError(t, err) {
					return
				}
				defer l.Close() // a second call does nothing
				for j := range 50 {
					k, err := l.TryLock(ctx, fmt.Sprint("x", i, j%2), 10*time.Second, mysqllock.AutoRenew)
					if !assert.NoError(t, err) {
						return
					}
					if err := k.Extend(ctx, 2*time.Minute); err != nil {
						assert.NotErrorIs(t, err, mysqllock.ErrLost)
					}
					if err := k.Unlock(); err != nil {
						assert.NotErrorIs(t, err, mysqllock.ErrLost)
					}
					cycles.Add(1)
				}
				for j := range 3 { // released by Close
					_, err := l.TryLock(ctx, fmt.Sprint("closed", i, j), 10*time.Second, mysqllock.AutoRenew)
					assert.NoError(t, err)
				}
				assert.NoError(t, l.Close())
				closed.Add(1)
			}
		})
	}
	group.Wait()
	stop()
	killers.Wait()
	t.Logf("%s: %d UPDATEs killed during %d cycles and %d Closes", server.Version, killed.Load(), cycles.Load(), closed.Load())
	require.Positive(t, killed.Load())
	infos, err := observer.List(ctx)
	require.NoError(t, err)
	for _, info := range infos {
		require.False(t, info.Held, "%+v", info)
	}
}

// isKilled reports whether a statement was ended by KILL QUERY.
func isKilled(err error) bool {
	var refused *mysql.MySQLError
	return errors.As(err, &refused) && refused.Number == 1317
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
		_, err = conn.ExecContext(ctx, "BEGIN")
		require.NoError(t, err)
		require.NoError(t, beside.Guard(ctx, conn))
	})
}

// losses take a lock away without its holder's knowledge.
var losses = map[string]func(t *testing.T, e env, name string){
	"forced": func(t *testing.T, e env, name string) {
		held, err := e.locker(t).ForceUnlock(ctx, name)
		require.NoError(t, err)
		require.True(t, held)
	},
	"taken over": func(t *testing.T, e env, name string) {
		_, err := e.db(t, "").Exec("UPDATE mysqllock SET expires_at = '1970-01-01' WHERE name = ?", name)
		require.NoError(t, err)
		acquire(t, e.locker(t), name, mysqllock.AutoRenew)
	},
	"deleted": func(t *testing.T, e env, name string) {
		_, err := e.db(t, "").Exec("DELETE FROM mysqllock WHERE name = ?", name)
		require.NoError(t, err)
	},
}

// Once Guard has reported a loss, every method of every handle of the hold does.
func TestLossFoundByGuard(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for way, take := range losses {
			for kind, lease := range map[string]time.Duration{"auto": mysqllock.AutoRenew, "fixed": time.Minute} {
				t.Run(way+"/"+kind, func(t *testing.T) {
					t.Parallel()
					name := way + kind
					l := e.locker(t)
					k := acquire(t, l, name, lease)
					again, err := l.TryLock(k.Context(), name, 0, lease)
					require.NoError(t, err)
					take(t, e, name)
					require.NoError(t, k.Err(), "not known yet")
					tx, err := e.db(t, "").Begin()
					require.NoError(t, err)
					defer tx.Rollback()
					require.ErrorIs(t, k.Guard(ctx, tx), mysqllock.ErrLost)
					for _, k := range []*mysqllock.Lock{k, again} {
						require.ErrorIs(t, k.Err(), mysqllock.ErrLost)
						require.ErrorIs(t, context.Cause(k.Context()), mysqllock.ErrLost)
						require.ErrorIs(t, k.Extend(ctx, time.Minute), mysqllock.ErrLost)
						require.ErrorIs(t, k.Guard(ctx, tx), mysqllock.ErrLost)
						_, err = l.TryLock(k.Context(), name, 0, lease)
						require.ErrorIs(t, err, mysqllock.ErrLost)
						require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
						require.ErrorIs(t, k.Err(), mysqllock.ErrNotHeld)
						require.ErrorIs(t, k.Guard(ctx, tx), mysqllock.ErrNotHeld)
					}
					require.EqualValues(t, 1, l.Stats().Lost)
					require.Zero(t, l.Stats().Held)
				})
			}
		}
	})
}

// A Guard that fails delays no grant while its transaction stays open: not of its own name,
// nor of one whose token is the highest in the table. SERIALIZABLE is not promised.
func TestFailedGuardHoldsUpNobody(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		ways := map[string]func(t *testing.T, e env, name string){
			"truncated": func(t *testing.T, e env, name string) {
				_, err := e.db(t, "").Exec("TRUNCATE TABLE mysqllock")
				require.NoError(t, err)
			},
		}
		maps.Copy(ways, losses)
		for _, level := range []string{"READ-UNCOMMITTED", "READ-COMMITTED", "REPEATABLE-READ"} {
			for way, take := range ways {
				t.Run(level+"/"+way, func(t *testing.T) {
					t.Parallel()
					e := env{e.server, mysqltest.NewDatabase(t, e.server)}
					other := e.locker(t)
					require.NoError(t, other.CreateTable(ctx))
					require.NoError(t, acquire(t, other, "known", mysqllock.AutoRenew).Unlock())
					l := e.locker(t)
					k := acquire(t, l, "lost", time.Minute)
					take(t, e, "lost")
					tx, err := e.db(t, isolation(e, level)).Begin()
					require.NoError(t, err)
					defer tx.Rollback()
					require.ErrorIs(t, k.Guard(ctx, tx), mysqllock.ErrLost)
					for _, name := range []string{"known", "new", "zzz", "lost"} {
						if name == "lost" && way == "taken over" {
							continue
						}
						k, err := other.TryLock(ctx, name, 5*time.Second, mysqllock.AutoRenew)
						require.NoError(t, err, name)
						require.NoError(t, k.Unlock())
					}
				})
			}
		}
	})
}

// A lock whose row was taken away is not handed on inside the process: Unlock and
// Do report the loss, and the next holder here gets a token above that of a caller that
// has had the lock since.
func TestHandoffOfARowTakenAway(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for what, takeAway := range map[string]func(t *testing.T, e env, other *mysqllock.Locker){
			"ForceUnlock": func(t *testing.T, e env, other *mysqllock.Locker) {
				held, err := other.ForceUnlock(ctx, "x")
				require.NoError(t, err)
				require.True(t, held)
			},
			"deleted": func(t *testing.T, e env, other *mysqllock.Locker) {
				_, err := e.db(t, "").Exec("DELETE FROM mysqllock WHERE name = 'x'")
				require.NoError(t, err)
			},
			"truncated": func(t *testing.T, e env, other *mysqllock.Locker) {
				_, err := e.db(t, "").Exec("TRUNCATE TABLE mysqllock")
				require.NoError(t, err)
			},
		} {
			for end, leave := range map[string]func(*testing.T, *mysqllock.Locker, func()){
				"Unlock": func(t *testing.T, l *mysqllock.Locker, while func()) {
					k := acquire(t, l, "x", mysqllock.AutoRenew)
					while()
					require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
				},
				"Do": func(t *testing.T, l *mysqllock.Locker, while func()) {
					err := l.Do(ctx, "x", 0, mysqllock.AutoRenew, func(context.Context) error { while(); return nil })
					require.ErrorIs(t, err, mysqllock.ErrLost)
				},
			} {
				t.Run(what+", "+end, func(t *testing.T) {
					t.Parallel()
					e := env{server: e.server, database: mysqltest.NewDatabase(t, e.server)}
					l, other := e.locker(t), e.locker(t)
					require.NoError(t, l.CreateTable(ctx))
					got := make(chan *mysqllock.Lock, 1)
					var theirs *mysqllock.Lock
					leave(t, l, func() {
						go func() {
							k, err := l.Lock(ctx, "x", mysqllock.AutoRenew)
							assert.NoError(t, err)
							got <- k
						}()
						eventually(t, "a waiter", func() bool { return l.Stats().Waiting == 1 })
						takeAway(t, e, other)
						theirs = acquire(t, other, "x", mysqllock.AutoRenew)
					})
					select {
					case k := <-got:
						require.FailNow(t, "granted beside another holder", "token %d, theirs %d", k.Token(), theirs.Token())
					case <-time.After(100 * time.Millisecond):
					}
					require.EqualValues(t, 1, l.Stats().Lost)
					require.NoError(t, theirs.Unlock())
					next := <-got
					require.Greater(t, next.Token(), theirs.Token())
					require.NoError(t, next.Unlock())
				})
			}
		}
	})
}

// A transaction that looked at the table before the lock was granted can be guarded
// all the same: its snapshot does not show the grant.
func TestGuardInAnOlderSnapshot(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, db := e.locker(t), e.db(t, "")
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
		var refuses bool // MariaDB from 11.6 on may
		if db.QueryRow("SELECT @@innodb_snapshot_isolation").Scan(&refuses) != nil {
			refuses = false
		}
		for _, name := range []string{"x", "new"} {
			tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead}) // SERIALIZABLE would lock the table
			require.NoError(t, err)
			defer tx.Rollback()
			var rows int
			require.NoError(t, tx.QueryRow("SELECT COUNT(*) FROM mysqllock").Scan(&rows))
			k := acquire(t, l, name, mysqllock.AutoRenew)
			err = k.Guard(ctx, tx)
			require.NoError(t, k.Err())
			if refuses && err != nil {
				var told *mysql.MySQLError
				require.ErrorAs(t, err, &told)
				require.EqualValues(t, 1020, told.Number)
				continue
			}
			require.NoError(t, err)
			require.NoError(t, k.Unlock())
			_, err = e.locker(t).TryLock(ctx, name, 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired, "it is guarded")
		}
	})
}

// A Guard that does not find the row although it is still the holder's has been
// given a transaction that is elsewhere: that costs no lock.
func TestGuardInAnotherDatabase(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		elsewhere := env{e.server, mysqltest.NewDatabase(t, e.server)}
		require.NoError(t, elsewhere.locker(t).CreateTable(ctx))
		k := acquire(t, e.locker(t), "x", mysqllock.AutoRenew)
		tx, err := elsewhere.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		err = k.Guard(ctx, tx)
		require.ErrorContains(t, err, "does not find the lock's row")
		require.NotErrorIs(t, err, mysqllock.ErrLost)
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
	})
}

// Guard takes nothing but an open transaction, in whatever wrapping.
func TestGuardNeedsATransaction(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		type wrapped struct{ mysqllock.Queryer }
		db := e.db(t, "")
		x := sqlx.NewDb(db, "mysql")
		k := acquire(t, e.locker(t), "x", mysqllock.AutoRenew)
		conn, err := db.Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		connx, err := x.Connx(ctx)
		require.NoError(t, err)
		defer connx.Close()
		tx, err := db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		txx, err := x.Beginx()
		require.NoError(t, err)
		defer txx.Rollback()

		require.ErrorContains(t, k.Guard(ctx, db), "a pool is no transaction")
		require.ErrorContains(t, k.Guard(ctx, x), "a pool is no transaction")
		none := map[string]mysqllock.Queryer{
			"Conn": conn, "sqlx.Conn": connx, "wrapped DB": wrapped{db}, "wrapped sqlx.DB": &wrapped{x}, "wrapped Conn": wrapped{wrapped{conn}},
			"nil": nil, "nil Tx": (*sql.Tx)(nil), "nil sqlx.Tx": (*sqlx.Tx)(nil), "nil Conn": (*sql.Conn)(nil),
		}
		for what, tx := range none {
			require.ErrorContains(t, k.Guard(ctx, tx), "no transaction is open", what)
		}
		require.NoError(t, k.Err())
		for what, tx := range map[string]mysqllock.Queryer{"Tx": tx, "sqlx.Tx": txx, "wrapped Tx": wrapped{tx}, "wrapped sqlx.Tx": wrapped{wrapped{txx}}} {
			require.NoError(t, k.Guard(ctx, tx), what)
		}
		for _, begin := range []string{"BEGIN", "SET autocommit = 0"} {
			for what, conn := range map[string]*sql.Conn{"Conn": conn, "sqlx.Conn": connx.Conn} {
				_, err = conn.ExecContext(ctx, begin)
				require.NoError(t, err)
				for range 2 {
					require.NoError(t, k.Guard(ctx, none[what]), begin)
				}
				require.NoError(t, k.Guard(ctx, wrapped{none[what]}), begin)
				_, err = conn.ExecContext(ctx, "COMMIT")
				require.NoError(t, err)
			}
		}
	})
}

// ForceUnlock waits for transactions under Guard until its context ends, at every
// isolation level and whatever limits the session has, and costs the holder nothing
// before it succeeds.
func TestForceUnlockWaitsForGuards(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		limit := timeLimit(e, 300)
		for what, params := range map[string]string{
			"serializable": isolation(e, "SERIALIZABLE"), "repeatable read": isolation(e, "REPEATABLE-READ"), "time limit": limit, "lock wait limit": "innodb_lock_wait_timeout=1",
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				l, other, db := e.locker(t, mysqllock.WithLease(3*time.Second)), newLocker(t, e.db(t, params)), e.db(t, "")
				if what == "time limit" { // it ends no Guard behind ForceUnlock either
					db = e.db(t, params)
				}
				k := acquire(t, l, what, mysqllock.AutoRenew)
				begin := func() *sql.Tx {
					tx, err := db.Begin()
					require.NoError(t, err)
					t.Cleanup(func() { tx.Rollback() })
					return tx
				}
				tx := begin()
				require.NoError(t, k.Guard(ctx, tx))
				forced := make(chan error, 1)
				go func() {
					freed, err := other.ForceUnlock(ctx, what)
					if err == nil && !freed {
						err = errors.New("nobody had it")
					}
					forced <- err
				}()
				// For longer than the lease, and while the holder keeps working.
				for start := time.Now(); time.Since(start) < 5*time.Second; {
					second := begin()
					asked := time.Now()
					require.NoError(t, k.Guard(ctx, second))
					require.Less(t, time.Since(asked), 10*time.Second, "behind a statement of ForceUnlock, each of which waits for 1 s")
					require.NoError(t, second.Commit())
					time.Sleep(100 * time.Millisecond)
				}
				require.NoError(t, k.Err())
				require.Empty(t, forced)
				require.NoError(t, tx.Commit())
				require.NoError(t, <-forced)
				requireHeld(t, l, what, false)
				require.ErrorIs(t, k.Guard(ctx, begin()), mysqllock.ErrLost)
			})
		}
	})
}

// A guard of another lock, whose token follows in the index, does not delay ForceUnlock.
func TestForceUnlockBesideAGuard(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, operator := e.locker(t), e.locker(t)
		acquire(t, l, "x", auto)
		other := acquire(t, l, "y", auto)
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, other.Guard(ctx, tx))
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		held, err := operator.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, other.Err())
	})
}

// A ForceUnlock that was given up leaves nothing behind in the server for which
// the holder would wait.
func TestForceUnlockGivenUp(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		k, other, db := acquire(t, e.locker(t), "x", mysqllock.AutoRenew), e.locker(t), e.db(t, "")
		tx, err := db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, k.Guard(ctx, tx))
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = other.ForceUnlock(short, "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(start), 10*time.Second, "it ends with its context")
		second, err := db.Begin()
		require.NoError(t, err)
		defer second.Rollback()
		start = time.Now()
		require.NoError(t, k.Guard(ctx, second))
		require.Less(t, time.Since(start), 10*time.Second, "1 s at most on an idle machine; 50 s if the server still waited for ForceUnlock")
	})
}

// A statement that begins a transaction may be executed although a proxy answers with an error. The
// connection must not return to the pool within that transaction.
func TestBeginWithAnError(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		proxy, other := wire.New(t, e.server.Addr()), e.locker(t)
		db := e.through(t, proxy)
		db.SetMaxOpenConns(1)
		l := newLocker(t, db)
		proxy.Interfere(func(query string) wire.Interference {
			if strings.HasPrefix(query, "START TRANSACTION") {
				return wire.Interference{Error: 2013}
			}
			return wire.Interference{}
		})
		held := acquire(t, other, "x", auto)
		limited, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := l.ForceUnlock(limited, "x")
		require.Error(t, err)
		proxy.Interfere(nil)
		require.NoError(t, held.Unlock())
		require.NoError(t, acquire(t, l, "x", auto).Unlock())
		k, err := other.TryLock(ctx, "x", 2*time.Second, auto)
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
	})
}

// A ForceUnlock that is given up names the transaction that it has waited for, and not the
// statement that its context has cut off.
func TestForceUnlockNamesTheGuard(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		k, other, db := acquire(t, e.locker(t), "x", mysqllock.AutoRenew), e.locker(t), e.db(t, "")
		tx, err := db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, k.Guard(ctx, tx))
		long, cancel := context.WithTimeout(ctx, 3500*time.Millisecond)
		defer cancel()
		_, err = other.ForceUnlock(long, "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "a transaction has the lock under Guard")
	})
}

// Guards that overlap without end do not block ForceUnlock: it queues behind them.
func TestForceUnlockQueuesBehindGuards(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		k, other, db := acquire(t, e.locker(t), "x", mysqllock.AutoRenew), e.locker(t), e.db(t, "")
		var wg sync.WaitGroup
		defer wg.Wait()
		defer k.Unlock() // ends the guards even if ForceUnlock fails
		guarded := make(chan struct{}, 1000)
		for i := range 4 {
			wg.Go(func() {
				time.Sleep(time.Duration(i) * 25 * time.Millisecond)
				for k.Err() == nil {
					tx, err := db.Begin()
					if !assert.NoError(t, err) {
						return
					}
					if k.Guard(ctx, tx) == nil {
						guarded <- struct{}{}
						time.Sleep(100 * time.Millisecond)
					}
					assert.NoError(t, tx.Rollback())
				}
			})
		}
		for range 8 {
			<-guarded
		}
		bounded, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		freed, err := other.ForceUnlock(bounded, "x")
		require.NoError(t, err)
		require.True(t, freed)
	})
}

// Where the server does not look for deadlocks, a ForceUnlock and an acquire that
// wait for the same guard do not wait for each other until the server gives up.
func TestForceUnlockWithoutDeadlockDetection(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.New(t, kind, "--innodb-deadlock-detect=OFF")
			e := env{server, mysqltest.NewDatabase(t, server)}
			l, other, next := e.locker(t), e.locker(t), e.locker(t)
			require.NoError(t, l.CreateTable(ctx))
			k := acquire(t, l, "x", mysqllock.AutoRenew)
			tx, err := e.db(t, "").Begin()
			require.NoError(t, err)
			defer tx.Rollback()
			require.NoError(t, k.Guard(ctx, tx))
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				_, err := other.ForceUnlock(ctx, "x")
				assert.NoError(t, err)
			})
			time.Sleep(300 * time.Millisecond) // it waits for the guard
			require.NoError(t, k.Unlock())
			got := make(chan *mysqllock.Lock, 1)
			go func() {
				k, err := next.Lock(ctx, "x", mysqllock.AutoRenew)
				assert.NoError(t, err)
				got <- k
			}()
			time.Sleep(300 * time.Millisecond) // so does the statement of Lock
			require.NoError(t, tx.Commit())
			start := time.Now()
			select {
			case <-got:
				t.Logf("granted %v after the guard had ended", time.Since(start))
			case <-time.After(15 * time.Second):
				require.FailNow(t, "they wait for each other")
			}
		})
	}
}

// What extends and releases locks behind locked rows adds no statement that waits
// in the server, beside one for each row, and no connection beyond the pool.
func TestHoldersBehindLockedRows(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for what, act := range map[string]func(t *testing.T, k *mysqllock.Lock){
			"Extend": func(t *testing.T, k *mysqllock.Lock) {
				short, cancel := context.WithTimeout(ctx, 3*time.Second)
				defer cancel()
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() { assert.ErrorIs(t, k.Extend(short, time.Minute), context.DeadlineExceeded) })
				}
				wg.Wait()
			},
			"Unlock": func(t *testing.T, k *mysqllock.Lock) {
				err := k.Unlock()
				assert.Error(t, err)
				assert.NotErrorIs(t, err, mysqllock.ErrLost)
			},
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				e := env{server: e.server, database: mysqltest.NewDatabase(t, e.server)}
				testBehindLockedRows(t, e, act)
			})
		}
	})
}

func testBehindLockedRows(t *testing.T, e env, act func(*testing.T, *mysqllock.Lock)) {
	const rows, pool, application = 3, 6, 2
	db, other := e.db(t, ""), e.db(t, "")
	db.SetMaxOpenConns(pool)
	l := newLocker(t, db, mysqllock.WithLease(20*time.Second))
	require.NoError(t, l.CreateTable(ctx))
	for range application {
		conn, err := db.Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
	}
	var locks []*mysqllock.Lock
	for i := range rows {
		locks = append(locks, acquire(t, l, fmt.Sprint("x", i), mysqllock.AutoRenew))
	}
	tx, err := other.Begin()
	require.NoError(t, err)
	defer tx.Rollback()
	_, err = tx.Exec("UPDATE mysqllock SET holder = 'somebody'")
	require.NoError(t, err)

	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for _, k := range locks {
			wg.Go(func() {
				start := time.Now()
				act(t, k)
				assert.Less(t, time.Since(start), 5*time.Second)
			})
		}
		wg.Wait()
	}()
	for acting := true; acting; {
		select {
		case <-done:
			acting = false
		case <-time.After(50 * time.Millisecond):
		}
		found, err := other.Query("SELECT COALESCE(info, '') FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
		require.NoError(t, err)
		connections, waiting := -1, map[string]int{} // without the transaction's
		for found.Next() {
			var statement string
			require.NoError(t, found.Scan(&statement))
			connections++
			for _, k := range locks {
				if strings.HasPrefix(statement, "UPDATE ") && strings.Contains(statement, "'"+k.Name()+"'") {
					waiting[k.Name()]++
				}
			}
		}
		require.NoError(t, found.Close())
		require.LessOrEqual(t, connections, pool)
		for name, n := range waiting {
			require.Equal(t, 1, n, "statements that wait for %s", name)
		}
	}
	require.NoError(t, tx.Rollback())
	for _, k := range locks {
		k.Unlock()
		requireFree(t, l, k.Name())
	}
	eventually(t, "the pool has its connections again", func() bool { return db.Stats().InUse <= application })
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

// The log has one error when a lock is lost, one warning when renewals fail, one info record
// when they succeed again, and nothing else; and no SQL.
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

		// A release behind a locked row: one connection, and the other lock is renewed.
		server, err := sql.Open("mysql", e.server.DSN("", ""))
		require.NoError(t, err)
		defer server.Close()
		behind, held := acquire(t, l, "stuck", mysqllock.AutoRenew), acquire(t, l, "held", mysqllock.AutoRenew)
		tx, err = e.db(t, "").Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		_, err = tx.Exec("UPDATE mysqllock SET holder = 'somebody' WHERE name = 'stuck'")
		require.NoError(t, err)
		before, _ := waitingStatements(t, server, e)
		unlocked := make(chan error, 1)
		go func() { unlocked <- behind.Unlock() }()
		for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			connections, waiting := waitingStatements(t, server, e)
			require.Zero(t, waiting)
			require.LessOrEqual(t, connections, before)
		}
		err = <-unlocked
		require.Error(t, err)
		require.NotErrorIs(t, err, mysqllock.ErrLost)
		require.NoError(t, held.Err())
		require.NoError(t, tx.Rollback())
		require.NoError(t, acquire(t, l, "stuck", mysqllock.AutoRenew).Unlock())
		require.NoError(t, held.Unlock())
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

// A connection that was kept for renewals and is dead costs no lock, although the
// application uses up the pool for a while before or after it was found so: another
// one is tried as soon as there is one.
func TestDeadConnectionInABusyPool(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for name, busy := range map[string]struct{ from, until time.Duration }{ // since the acquire; the renewal is due at 2 s, and the trust ends at 5.4 s
			"used up as it is sent":        {1500 * time.Millisecond, 2500 * time.Millisecond},
			"used up as its time runs out": {2800 * time.Millisecond, 4500 * time.Millisecond},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dying := wire.New(t, e.server.Addr())
				proxy := wire.New(t, dying.Addr())
				db := e.through(t, proxy)
				db.SetMaxOpenConns(3)
				l := newLocker(t, db, mysqllock.WithLease(6*time.Second))
				k := acquire(t, l, name, mysqllock.AutoRenew)
				start := time.Now()
				time.Sleep(time.Second)
				require.Equal(t, 1, proxy.Open(), "the connection that is kept")
				dying.BlackHole(true)
				proxy.Redirect(e.server.Addr())
				time.Sleep(busy.from - time.Since(start))
				for range 2 {
					conn, err := db.Conn(ctx)
					require.NoError(t, err)
					defer conn.Close()
					time.AfterFunc(busy.until-time.Since(start), func() { conn.Close() })
				}
				eventually(t, "a renewal", func() bool { return l.Stats().Renewals > 0 || k.Err() != nil })
				require.NoError(t, k.Err())
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
	go k.Unlock() // not here: only an acquire must panic
	<-k.Context().Done()
}
