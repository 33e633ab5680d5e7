package mysqllock_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// A process that polls only once an hour, so that nothing but a signal can wake it
// in time.
var rarely = mysqllock.WithPollInterval(time.Hour)

// waiting starts to wait for a lock, and returns when the row lists the process
// as one of n.
func waiting(t testing.TB, l *mysqllock.Locker, name string, n int) <-chan *mysqllock.Lock {
	t.Helper()
	return waitingSeenBy(t, l, l, name, n)
}

// waitingSeenBy looks at the row with another Locker, and so on another pool.
func waitingSeenBy(t testing.TB, by, l *mysqllock.Locker, name string, n int) <-chan *mysqllock.Lock {
	t.Helper()
	got := make(chan *mysqllock.Lock, 1)
	go func() {
		k, err := l.TryLock(ctx, name, time.Minute, mysqllock.AutoRenew)
		if err != nil {
			close(got)
			return
		}
		got <- k
	}()
	eventually(t, "not listed", func() bool {
		info, err := by.Inspect(ctx, name)
		require.NoError(t, err)
		return info.Waiters == n
	})
	return got
}

// get waits for a lock that waiting is to get.
func get(t testing.TB, got <-chan *mysqllock.Lock) *mysqllock.Lock {
	t.Helper()
	select {
	case k := <-got:
		require.NotNil(t, k)
		return k
	case <-time.After(20 * time.Second):
		require.FailNow(t, "not woken")
		return nil
	}
}

// The release of a lock wakes the process that waits for it.
func TestSignal(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t, rarely), e.locker(t, rarely)
		k := acquire(t, a, "x", mysqllock.AutoRenew)
		got := make(chan *mysqllock.Lock, 1)
		go func() {
			k, _ := b.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
			got <- k
		}()
		// Two statements look at the session, two ask for the lock, one for the listens,
		// and one keeps the next ones out of the slow log.
		// Five listen for 0.1, 0.2, 0.4, 0.8 and 1.6 s, the next for 3.2 s.
		eventually(t, "not listening", func() bool { return b.Stats().Statements >= 12 })
		freed := time.Now()
		require.NoError(t, k.Unlock())
		next := get(t, got)
		require.Less(t, time.Since(freed), 2*time.Second, "not signalled")

		var worst time.Duration
		for range 20 {
			require.NoError(t, next.Unlock())
			k = acquire(t, a, "x", mysqllock.AutoRenew)
			again := waiting(t, b, "x", 1)
			freed = time.Now()
			require.NoError(t, k.Unlock())
			next = get(t, again)
			worst = max(worst, time.Since(freed))
			require.Greater(t, next.Token(), k.Token())
			require.Zero(t, requireHeld(t, a, "x", true).Waiters)
		}
		t.Log("woken within", worst)
		require.Less(t, worst, 4*time.Second, "a listening statement ends by itself after 5 s")
		require.NoError(t, next.Unlock())
	})
}

// Every way to free a lock wakes the waiter.
func TestReleasesThatSignal(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		b := e.locker(t, rarely)
		for what, free := range map[string]func(a *mysqllock.Locker, k *mysqllock.Lock){
			"force": func(a *mysqllock.Locker, k *mysqllock.Lock) {
				held, err := a.ForceUnlock(ctx, k.Name())
				require.NoError(t, err)
				require.True(t, held)
			},
			"close":  func(a *mysqllock.Locker, k *mysqllock.Lock) { require.NoError(t, a.Close()) },
			"expiry": func(*mysqllock.Locker, *mysqllock.Lock) {},
		} {
			t.Run(what, func(t *testing.T) {
				a := e.locker(t, rarely)
				lease := mysqllock.AutoRenew
				if what == "expiry" {
					lease = 2 * time.Second
				}
				k := acquire(t, a, what, lease)
				for i := range 3 {
					acquire(t, a, fmt.Sprint(what, " beside ", i), mysqllock.AutoRenew)
				}
				got := waiting(t, b, what, 1)
				free(a, k)
				start := time.Now()
				require.NoError(t, get(t, got).Unlock())
				t.Log(what, time.Since(start))
			})
		}
	})
}

// Nobody waits: acquire and release are one statement each and open no
// connection beside; a process that waits opens one, whatever it waits for.
func TestConnectionsOfWaiting(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		p := wire.New(t, e.server.Addr())
		db := e.through(t, p)
		db.SetMaxIdleConns(50)
		a, b := e.locker(t), newLocker(t, db)
		acquire(t, b, "warm", mysqllock.AutoRenew).Unlock()
		before := p.Open()
		var got []<-chan *mysqllock.Lock
		var held []*mysqllock.Lock
		for i := range 50 {
			held = append(held, acquire(t, a, fmt.Sprint(i), mysqllock.AutoRenew))
		}
		for i := range 50 {
			got = append(got, waiting(t, b, fmt.Sprint(i), 1))
		}
		// The row shows a waiter before the answer to its attempt has been read: the last
		// attempts may still have their connections.
		eventually(t, "one that listens", func() bool { return db.Stats().InUse == 1 })
		for range 200 {
			time.Sleep(5 * time.Millisecond)
			require.LessOrEqual(t, db.Stats().InUse, 2, "one that listens, one that looks")
		}
		t.Log("connections before", before, "while waiting for 50 names", p.Open())

		for i, k := range slices.Backward(held) {
			require.NoError(t, k.Unlock())
			require.NoError(t, get(t, got[i]).Unlock())
		}
		eventually(t, "the connection is closed when nobody waits", func() bool { return db.Stats().InUse == 0 })
	})
}

// Processes get a lock in the order in which they began to wait.
func TestOrder(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		k := acquire(t, e.locker(t), "x", mysqllock.AutoRenew)
		var got []<-chan *mysqllock.Lock
		for i := range 6 {
			got = append(got, waiting(t, e.locker(t, rarely), "x", i+1))
		}
		for len(got) > 0 {
			last, freed, next := k.Token(), time.Now(), 0
			require.NoError(t, k.Unlock())
			eventually(t, "nobody is woken", func() bool {
				for i, c := range got {
					select {
					case k = <-c:
						next = i
						return true
					default:
					}
				}
				return false
			})
			require.NotNil(t, k)
			require.Greater(t, k.Token(), last)
			if next > 0 {
				// The row is reserved that long for the head, which a busy machine may delay.
				t.Log("out of turn", next, time.Since(freed))
				require.Greater(t, time.Since(freed), 250*time.Millisecond, "out of turn")
			}
			got = slices.Delete(got, next, next+1)
		}
		require.NoError(t, k.Unlock())
	})
}

// A process whose pool is too small to listen keeps its place in the wait queue.
func TestOrderInASmallPool(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		k := acquire(t, e.locker(t), "x", mysqllock.AutoRenew)
		db := e.db(t, "")
		db.SetMaxOpenConns(3)
		small := waiting(t, newLocker(t, db), "x", 1)
		other := waiting(t, e.locker(t), "x", 2)
		freed := time.Now()
		require.NoError(t, k.Unlock())
		select {
		case k = <-small:
			require.NoError(t, k.Unlock())
			require.NoError(t, get(t, other).Unlock())
		case k = <-other:
			require.Greater(t, time.Since(freed), 1500*time.Millisecond, "out of turn")
			require.NoError(t, k.Unlock())
			require.NoError(t, get(t, small).Unlock())
		}
	})
}

// A lock that came free is kept for a caller that is first in line, but not for long.
func TestReservation(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		// A process that can be signalled, and never responds.
		conn, err := e.db(t, "").Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(ctx, "DO GET_LOCK('mysqllock:5111111111111111111', 0)")
		require.NoError(t, err)

		a, b := e.locker(t), e.locker(t)
		for _, wait := range []time.Duration{0, time.Minute} {
			k := acquire(t, a, "x", mysqllock.AutoRenew)
			_, err = conn.ExecContext(ctx, "UPDATE mysqllock SET waiters = '5111111111111111111' WHERE name = 'x'")
			require.NoError(t, err)
			start := time.Now()
			require.NoError(t, k.Unlock())
			freed := time.Now()
			k, err = b.TryLock(ctx, "x", wait, mysqllock.AutoRenew)
			require.NoError(t, err)
			require.Greater(t, time.Since(start), 250*time.Millisecond)
			t.Log("wait", wait, "passed over after", time.Since(freed))
			require.Zero(t, requireHeld(t, a, "x", true).Waiters, "removed")
			require.NoError(t, k.Unlock())
		}
	})
}

// A waiter that has left does not keep the lock from others.
func TestWaitersThatLeft(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, gone, b := e.locker(t), e.locker(t), e.locker(t)
		for range 20 {
			k := acquire(t, a, "x", mysqllock.AutoRenew)
			_, err := gone.TryLock(ctx, "x", 10*time.Millisecond, mysqllock.AutoRenew)
			if !errors.Is(err, mysqllock.ErrUnavailable) { // the machine may be too busy for an answer in 100 ms
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			}
			require.NoError(t, k.Unlock())
			// A statement of the waiter that left may be granted first, and be undone:
			// without a wait, b would rightly be refused.
			require.NoError(t, acquire(t, b, "x", mysqllock.AutoRenew).Unlock())
		}
		eventually(t, "still listed", func() bool { return requireHeld(t, a, "x", false).Waiters == 0 })

		// A process that ended without being removed is removed by the first one that
		// notices. The one behind it has received a signal before, and does not poll sooner.
		b = e.locker(t, rarely)
		k := acquire(t, a, "x", mysqllock.AutoRenew)
		got := waiting(t, b, "x", 1)
		require.NoError(t, k.Unlock())
		require.NoError(t, get(t, got).Unlock())
		k = acquire(t, a, "x", mysqllock.AutoRenew)
		_, err := e.db(t, "").Exec("UPDATE mysqllock SET waiters = '55555555555555555556666666666666666666' WHERE name = 'x'")
		require.NoError(t, err)
		got = waiting(t, b, "x", 3)
		require.NoError(t, k.Unlock())
		start := time.Now()
		k = get(t, got)
		require.Less(t, time.Since(start), 4*time.Second, "a listening statement ends by itself after 5 s")
		require.Zero(t, requireHeld(t, a, "x", true).Waiters)
		require.NoError(t, k.Unlock())
	})
}

// Without the signal nothing is listed, nobody signals, and the poller finds what
// is free.
func TestWithoutSignal(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		p := wire.New(t, e.server.Addr())
		a, b := e.locker(t), newLocker(t, e.through(t, p), mysqllock.WithoutSignal())
		k := acquire(t, a, "x", mysqllock.AutoRenew)
		got := make(chan *mysqllock.Lock, 1)
		go func() { got <- acquire(t, b, "x", mysqllock.AutoRenew) }()
		eventually(t, "not waiting", func() bool { return b.Stats().Waiting == 1 })
		time.Sleep(1500 * time.Millisecond)
		require.Zero(t, requireHeld(t, a, "x", true).Waiters)
		require.NoError(t, k.Unlock())
		require.NoError(t, get(t, got).Unlock())
		for _, q := range p.Queries() {
			require.NotContains(t, q, "SLEEP")
			require.NotContains(t, q, "KILL")
		}
	})
}

// A lock is handed over between goroutines of one process without a statement, except for a
// read if none was sent for 2 ms.
func TestHandoff(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		var got []<-chan *mysqllock.Lock
		for i := range 5 {
			next := make(chan *mysqllock.Lock, 1)
			got = append(got, next)
			go func() { next <- acquire(t, l, "x", mysqllock.AutoRenew) }()
			eventually(t, "not waiting", func() bool { return l.Stats().Waiting == i+1 })
		}
		before, start := l.Stats().Statements, time.Now()
		for i, next := range got {
			require.NoError(t, k.Unlock())
			n := get(t, next)
			require.Greater(t, n.Token(), k.Token())
			if time.Since(start) < 100*time.Millisecond { // then it is the turn of other processes
				require.Equal(t, k.Token()+1, n.Token())
				require.LessOrEqual(t, l.Stats().Statements, before+int64(i)+1)
			}
			require.NoError(t, n.Err())
			require.ErrorIs(t, k.Err(), mysqllock.ErrNotHeld)
			k = n
		}

		// A lease that the row does not cover takes one.
		short := acquire(t, l, "y", 2*time.Second)
		next := make(chan *mysqllock.Lock, 1)
		go func() { next <- acquire(t, l, "y", time.Minute) }()
		eventually(t, "not waiting", func() bool { return l.Stats().Waiting == 1 })
		before = l.Stats().Statements
		require.NoError(t, short.Unlock())
		long := get(t, next)
		require.LessOrEqual(t, l.Stats().Statements, before+2)
		require.Greater(t, long.Token(), short.Token())
		info := requireHeld(t, l, "y", true)
		require.Equal(t, long.Token(), info.Token)
		require.Greater(t, info.ExpiresIn, 50*time.Second)

		// The next holder in the database has a token above all that were given out.
		require.NoError(t, k.Unlock())
		require.NoError(t, long.Unlock())
		after := acquire(t, e.locker(t), "x", mysqllock.AutoRenew)
		require.Greater(t, after.Token(), k.Token())
	})
}

// A lock that was handed over is guarded, extended and lost like any other.
func TestHandoffIsAHold(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other, db := e.locker(t), e.locker(t), e.db(t, "")
		pass := func(name string, lease time.Duration) (from, to *mysqllock.Lock) {
			from = acquire(t, l, name, mysqllock.AutoRenew)
			next := make(chan *mysqllock.Lock, 1)
			go func() { next <- acquire(t, l, name, lease) }()
			eventually(t, "not waiting", func() bool { return l.Stats().Waiting == 1 })
			before := l.Stats().Statements
			require.NoError(t, from.Unlock())
			to = get(t, next)
			require.LessOrEqual(t, l.Stats().Statements, before+1)
			require.Equal(t, from.Token()+1, to.Token())
			return from, to
		}

		// Guarded.
		_, k := pass("guarded", mysqllock.AutoRenew)
		tx, err := db.BeginTx(ctx, nil)
		require.NoError(t, err)
		require.NoError(t, k.Guard(ctx, tx))
		waiter := make(chan *mysqllock.Lock, 1)
		go func() { waiter <- acquire(t, l, "guarded", mysqllock.AutoRenew) }()
		eventually(t, "not waiting", func() bool { return l.Stats().Waiting == 1 })
		require.NoError(t, k.Unlock())
		select {
		case <-waiter:
			require.Fail(t, "nobody may have it before the transaction ends")
		case <-time.After(300 * time.Millisecond):
		}
		require.NoError(t, tx.Commit())
		require.Greater(t, get(t, waiter).Token(), k.Token())

		// A fixed lease ends in its own time, and the lock is free then.
		start := time.Now()
		_, k = pass("fixed", 800*time.Millisecond)
		requireOver(t, k, mysqllock.ErrLost)
		require.Less(t, time.Since(start), 800*time.Millisecond+5*time.Second)
		require.NoError(t, acquire(t, other, "fixed", mysqllock.AutoRenew).Unlock())

		// Or is extended.
		_, k = pass("extended", 800*time.Millisecond)
		require.NoError(t, k.Extend(ctx, time.Minute))
		time.Sleep(time.Second)
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())

		// Taken away by force.
		_, k = pass("forced", mysqllock.AutoRenew)
		held, err := l.ForceUnlock(ctx, "forced")
		require.NoError(t, err)
		require.True(t, held)
		requireOver(t, k, mysqllock.ErrLost)
		require.Greater(t, acquire(t, other, "forced", mysqllock.AutoRenew).Token(), k.Token())

		// Deleted, and its row made anew.
		_, k = pass("deleted", mysqllock.AutoRenew)
		require.NoError(t, k.Unlock())
		_, err = l.Purge(ctx, 0)
		require.NoError(t, err)
		require.Greater(t, acquire(t, other, "deleted", mysqllock.AutoRenew).Token(), k.Token())
	})
}

// Two processes want one lock all the time, each with many goroutines: it passes
// on within a process, and yet each gets its share.
func TestShares(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		const enough = 24 // changes of the process: on an idle machine they take 3 s
		began, changes := time.Now(), 0
		slowest := worstStatement(t, e, ctx)
		var turns [2]int
		var held [2]time.Duration
		var last uint64
		var longest time.Duration // without the other process
		var since time.Time
		turn := -1
		var working sync.WaitGroup
		var lockers [2]*mysqllock.Locker
		for i := range lockers {
			l := e.locker(t)
			lockers[i] = l
			for range 16 {
				working.Go(func() {
					for ctx.Err() == nil {
						k, err := l.Lock(ctx, "x", mysqllock.AutoRenew)
						if err != nil {
							return
						}
						start := time.Now()
						if turn != i {
							turn, since = i, start
							if changes++; changes > enough && time.Since(began) > 3*time.Second {
								cancel()
							}
						}
						if k.Token() <= last {
							t.Errorf("token %d after %d", k.Token(), last)
						}
						last = k.Token()
						turns[i]++
						time.Sleep(100 * time.Microsecond)
						held[i] += time.Since(start)
						longest = max(longest, time.Since(since))
						if err := k.Unlock(); err != nil {
							t.Error(err)
						}
					}
				})
			}
		}
		working.Wait()
		var statements int64
		for _, l := range lockers {
			statements += l.Stats().Statements
		}
		slow := slowest()
		t.Log("turns", turns, "held", held, "longest", longest, "statements", statements, "changes", changes, "slowest statement", slow)
		require.Greater(t, changes, enough, "a process keeps the lock to itself")
		total := held[0] + held[1]
		for i := range 2 {
			require.Greater(t, held[i], total/4)
		}
		// A turn that ends more than 2 ms after the last answer costs a look. A change of
		// the process costs three statements more, and a process that waits two a second
		// for each of the two.
		extra := 3*changes + 4*int(time.Since(began)/time.Second)
		require.Less(t, statements, int64(2*(turns[0]+turns[1])+extra), "most turns need a look at most, instead of two writes or more")
		// 100 ms and a turn are promised; then come a few statements, late on a busy machine.
		require.Less(t, longest, time.Second+10*slow)
	})
}

// worstStatement writes to a row beside the table until ctx ends, and then returns the
// longest time that this took: what a statement may take on a machine that is as busy.
func worstStatement(t *testing.T, e env, ctx context.Context) func() time.Duration {
	db := e.db(t, "")
	_, err := db.Exec("CREATE TABLE beside (n INT PRIMARY KEY)")
	require.NoError(t, err)
	_, err = db.Exec("INSERT INTO beside VALUES (1)")
	require.NoError(t, err)
	worst := make(chan time.Duration)
	go func() {
		var longest time.Duration
		for start := time.Now(); ctx.Err() == nil; start = time.Now() {
			if _, err := db.Exec("UPDATE beside SET n = n + 1"); err != nil {
				t.Error(err)
			}
			longest = max(longest, time.Since(start))
			time.Sleep(5 * time.Millisecond)
		}
		worst <- longest
	}()
	return func() time.Duration { return <-worst }
}

// Waiters are signalled, and processes that do not wait are removed, in every database session:
// ids in the wait queue were misread in some.
func TestWaitQueueInSessions(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		look, db := e.locker(t), e.db(t, "")
		for name := range sessions {
			if kind := onlyOn[name]; kind != "" && kind != e.server.Kind {
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				lock := "naïve '" + name + `' \`
				p := wire.New(t, e.server.Addr())
				set := func(waiters string) {
					_, err := db.Exec("UPDATE mysqllock SET waiters = ? WHERE name = ?", waiters, lock)
					require.NoError(t, err)
				}
				wait := func(l *mysqllock.Locker, n int) <-chan *mysqllock.Lock {
					got := make(chan *mysqllock.Lock, 1)
					go func() {
						k, err := l.TryLock(ctx, lock, time.Minute, mysqllock.AutoRenew)
						assert.NoError(t, err)
						got <- k
					}()
					eventually(t, "not listed", func() bool { return requireHeld(t, look, lock, true).Waiters == n })
					return got
				}
				a, b := newLocker(t, e.session(t, p, name), rarely), newLocker(t, e.session(t, p, name), rarely)

				// Behind two that died; the statement that removes the first returns the second.
				k := acquire(t, a, lock, mysqllock.AutoRenew)
				set("55555555555555555556666666666666666666")
				got := wait(b, 3)
				require.NoError(t, k.Unlock())
				k = get(t, got)
				require.Zero(t, requireHeld(t, look, lock, true).Waiters)

				// By force.
				got = wait(a, 1)
				held, err := b.ForceUnlock(ctx, lock)
				require.NoError(t, err)
				require.True(t, held)
				require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
				k = get(t, got)

				// After the reservation of a head that does not respond: the next holder removes it.
				require.NoError(t, k.Unlock())
				set("5555555555555555555")
				eventually(t, "not granted", func() bool {
					k, err = b.TryLock(ctx, lock, 0, mysqllock.AutoRenew)
					return err == nil
				})
				require.Zero(t, requireHeld(t, look, lock, true).Waiters)
				require.NoError(t, k.Unlock())
			})
		}
	})
}

// A process whose pool is too small to listen is served beside one that always wants the lock:
// it had the lock once in ten seconds.
func TestSmallPoolIsServed(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		db.SetMaxOpenConns(3)
		hot, small := e.locker(t), newLocker(t, db)
		stop := make(chan struct{})
		var working sync.WaitGroup
		for range 8 {
			working.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					k, err := hot.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
					if assert.NoError(t, err) {
						time.Sleep(time.Millisecond)
						assert.NoError(t, k.Unlock())
					}
				}
			})
		}
		start := time.Now()
		for range 5 {
			k, err := small.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
			if assert.NoError(t, err) {
				assert.NoError(t, k.Unlock())
			}
		}
		close(stop)
		working.Wait()
		require.Less(t, time.Since(start), 20*time.Second)
	})
}

// A time limit on statements is not taken for a signal: a waiter then sent twenty
// statements a second.
func TestTimeLimitIsNoSignal(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		p := wire.New(t, e.server.Addr())
		a, b := e.locker(t), newLocker(t, e.through(t, p, timeLimit(e, 200)), rarely) // statements of a busy machine take less
		k := acquire(t, a, "x", mysqllock.AutoRenew)
		got := waiting(t, b, "x", 1)
		p.Reset()
		before := b.Stats().Statements
		time.Sleep(4 * time.Second)
		attempts := 0
		for _, q := range p.Queries() {
			if strings.HasPrefix(q, "UPDATE") {
				attempts++
			}
		}
		require.LessOrEqual(t, attempts, 2, "it asks when it is signalled, and nobody signals; else 5 times a second")
		require.LessOrEqual(t, b.Stats().Statements-before, int64(24), "it looks at 0, 0.1, 0.3, 0.7, 1.5 and 3.1 s")
		require.NoError(t, k.Unlock())
		require.NoError(t, get(t, got).Unlock())
	})
}

// Nor does it end the library's own reads: a waiter got an error of the database although
// another owner held the lock.
func TestTimeLimitOfReads(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a := e.locker(t)
		b := newLocker(t, e.db(t, timeLimit(e, 50)), mysqllock.WithoutSignal(), mysqllock.WithPollInterval(10*time.Millisecond))
		acquire(t, a, "x", mysqllock.AutoRenew)
		ended := make(chan error)
		go func() {
			_, err := b.TryLock(ctx, "x", time.Second, mysqllock.AutoRenew)
			ended <- err
		}()
		eventually(t, "not looking", func() bool { return b.Stats().Statements >= 6 })
		conn, err := e.db(t, "").Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(ctx, "LOCK TABLES mysqllock WRITE")
		require.NoError(t, err)
		err = <-ended
		_, unlockErr := conn.ExecContext(ctx, "UNLOCK TABLES")
		require.NoError(t, unlockErr)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		var limited *mysql.MySQLError
		require.False(t, errors.As(err, &limited), "%v", err)
	})
}

// A waiter that leaves while a transaction has the row locked is removed when that ends: the
// first statement skipped the row.
func TestWaiterLeavesALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, gone := e.locker(t), e.locker(t)
		k := acquire(t, a, "x", mysqllock.AutoRenew)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error)
		go func() {
			_, err := gone.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
			ended <- err
		}()
		eventually(t, "not listed", func() bool { return requireHeld(t, a, "x", true).Waiters == 1 })
		tx, err := e.db(t, "").Begin()
		require.NoError(t, err)
		var name string
		require.NoError(t, tx.QueryRow("SELECT name FROM mysqllock WHERE name = 'x' FOR UPDATE").Scan(&name))
		cancel()
		require.ErrorIs(t, <-ended, context.Canceled)
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, 1, requireHeld(t, a, "x", true).Waiters)
		require.NoError(t, tx.Rollback())
		eventually(t, "still listed", func() bool { return requireHeld(t, a, "x", true).Waiters == 0 })
		require.NoError(t, k.Unlock())
	})
}

// However waits end, no process stays enlisted that does not wait.
func TestNoWaiterStaysEnlisted(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		var lockers []*mysqllock.Locker
		for range 6 {
			lockers = append(lockers, e.locker(t))
		}
		k := acquire(t, lockers[0], "beside", mysqllock.AutoRenew)
		var working sync.WaitGroup
		for i, l := range lockers {
			if i > 0 {
				working.Go(func() { l.TryLock(ctx, "beside", 2*time.Second, mysqllock.AutoRenew) }) // it listens all the time
			}
			working.Go(func() {
				for n := range 60 {
					k, err := l.TryLock(ctx, "x", time.Duration(5+(i*7+n*3)%20)*time.Millisecond, mysqllock.AutoRenew)
					if err == nil {
						time.Sleep(8 * time.Millisecond)
						assert.NoError(t, k.Unlock())
					}
				}
			})
		}
		working.Wait()
		// The last grant may have come after its caller had gone, and is being undone.
		eventually(t, "still held", func() bool { return !requireInfo(t, lockers[0], "x").Held })
		eventually(t, "still listed", func() bool { return requireInfo(t, lockers[0], "x").Waiters == 0 })
		require.NoError(t, k.Unlock())
	})
}

// A process that waits adds nothing to the slow log: it sleeps in a statement.
func TestWaitingIsNotSlow(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.New(t, kind, "--slow-query-log=ON", "--log-output=TABLE", "--long-query-time=0.5", "--log-queries-not-using-indexes=ON")
			e := env{server, mysqltest.NewDatabase(t, server)}
			require.NoError(t, e.locker(t).CreateTable(ctx))
			account := e.account(t, "SELECT, INSERT, UPDATE", "*")
			root := e.db(t, "")
			logged := func(pattern string) (texts []string) {
				rows, err := root.Query("SELECT CONVERT(sql_text USING utf8mb4) FROM mysql.slow_log WHERE sql_text LIKE ? AND sql_text NOT LIKE '%slow_log%'", pattern)
				require.NoError(t, err)
				defer rows.Close()
				for rows.Next() {
					var text string
					require.NoError(t, rows.Scan(&text))
					texts = append(texts, text)
				}
				require.NoError(t, rows.Err())
				return texts
			}

			a, b := newLocker(t, openAs(t, account)), newLocker(t, openAs(t, account))
			k := acquire(t, a, "x", mysqllock.AutoRenew)
			got := waiting(t, b, "x", 1)
			before := b.Stats().Statements
			eventually(t, "not waiting", func() bool { return b.Stats().Statements >= before+5 }) // of 0.4, 0.8, 1 and 1 s at least
			require.NoError(t, k.Unlock())
			require.NoError(t, get(t, got).Unlock())

			// What the application does, on the same server and pool, is logged, and is all there is.
			_, err := openAs(t, account).Exec("DO SLEEP(0.6)")
			require.NoError(t, err)
			eventually(t, "not logged", func() bool { return len(logged("DO SLEEP(%")) == 1 }) // after the reply
			require.Len(t, logged("%SLEEP(%"), 1)
		})
	}
}

// sleeps returns for how long statements that listen were to sleep, in seconds.
func sleeps(t *testing.T, p *wire.Proxy) (all []float64) {
	for _, q := range p.Queries() {
		if m := regexp.MustCompile(`SLEEP\(([\d.]+)\)`).FindStringSubmatch(q); m != nil {
			seconds, err := strconv.ParseFloat(m[1], 64)
			require.NoError(t, err)
			all = append(all, seconds)
		}
	}
	return all
}

// The connection that listens is not kept from a limited pool for long: a free lock
// was refused for want of one.
func TestListeningInALimitedPool(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		p := wire.New(t, e.server.Addr())
		db := e.through(t, p)
		db.SetMaxOpenConns(4)
		a, b := e.locker(t), newLocker(t, db, rarely)
		held := acquire(t, b, "held", mysqllock.AutoRenew)
		require.NoError(t, held.Extend(ctx, time.Minute)) // keeps a connection
		k := acquire(t, a, "x", mysqllock.AutoRenew)
		// Looking on the same pool could use it up just when b begins to listen.
		got := waitingSeenBy(t, a, b, "x", 1)
		time.Sleep(3300 * time.Millisecond) // until it would listen for 3 s and more
		for range 2 {                       // the application
			conn, err := db.Conn(ctx)
			require.NoError(t, err)
			defer conn.Close()
		}
		require.Equal(t, 4, db.Stats().InUse)
		before := max(0, len(sleeps(t, p))-1) // of which one is under way
		var free *mysqllock.Lock
		eventually(t, "a call that does not wait gets a free lock", func() (ok bool) {
			var err error
			free, err = b.TryLock(ctx, "free", 0, mysqllock.AutoRenew)
			return err == nil
		})
		third, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		conn, err := db.Conn(third)
		require.NoError(t, err, "the application gets the connection that listened")
		defer conn.Close()
		slept := sleeps(t, p)
		require.Greater(t, len(slept), before)
		require.LessOrEqual(t, len(slept), before+3, "it gives way to a call that waits for a connection")
		require.LessOrEqual(t, slices.Max(slept), 0.5, "within the 0.7 s of a call that does not wait")
		require.NoError(t, free.Unlock())
		require.NoError(t, held.Unlock())
		require.NoError(t, k.Unlock())
		require.NoError(t, get(t, got).Unlock())
	})
}
