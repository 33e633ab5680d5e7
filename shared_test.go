package mysqllock_test

import (
	"context"
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
)

const auto = mysqllock.AutoRenew

// rlock acquires a lock shared, which nobody holds exclusively.
func rlock(t testing.TB, l *mysqllock.Locker, name string, lease time.Duration) *mysqllock.Lock {
	t.Helper()
	k, err := l.TryRLock(ctx, name, 5*time.Second, lease)
	require.NoError(t, err)
	return k
}

// An acquiring is a call in another goroutine.
type acquiring struct {
	k   *mysqllock.Lock
	err error
	end chan struct{} // closed at the end of the call
}

func try(acquire func() (*mysqllock.Lock, error)) *acquiring {
	a := &acquiring{end: make(chan struct{})}
	go func() {
		defer close(a.end)
		a.k, a.err = acquire()
	}()
	return a
}

func (a *acquiring) requireWaits(t testing.TB, d time.Duration) {
	t.Helper()
	select {
	case <-a.end:
		require.FailNow(t, "it does not wait", "%v", a.err)
	case <-time.After(d):
	}
}

func (a *acquiring) lock(t testing.TB) *mysqllock.Lock {
	t.Helper()
	select {
	case <-a.end:
	case <-time.After(20 * time.Second):
		require.FailNow(t, "it is not acquired")
	}
	require.NoError(t, a.err)
	return a.k
}

// requireWaiting waits until n goroutines of a Locker wait.
func requireWaiting(t testing.TB, l *mysqllock.Locker, n int) {
	t.Helper()
	eventually(t, fmt.Sprint(n, " wait"), func() bool { return l.Stats().Waiting == n })
}

func TestSharedHolders(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b, c := e.locker(t), e.locker(t), e.locker(t)
		r1, r2, r3 := rlock(t, a, "x", auto), rlock(t, a, "x", time.Minute), rlock(t, b, "x", auto)
		for _, k := range []*mysqllock.Lock{r1, r2, r3} {
			require.True(t, k.Shared())
			require.NoError(t, k.Err())
			require.Zero(t, k.Slot())
		}
		for _, l := range []*mysqllock.Locker{a, b, c} {
			_, err := l.TryLock(ctx, "x", 0, auto)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			require.NotErrorIs(t, err, mysqllock.ErrUnavailable)
		}
		rlock(t, c, "x", auto).Unlock() // the attempts that were refused left nothing behind
		require.NoError(t, r1.Unlock())
		require.ErrorIs(t, r1.Unlock(), mysqllock.ErrNotHeld)
		require.NoError(t, r2.Unlock())
		_, err := c.TryLock(ctx, "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, r3.Unlock())

		w := acquire(t, c, "x", auto)
		require.False(t, w.Shared())
		require.Greater(t, w.Token(), r1.Token())
		for _, l := range []*mysqllock.Locker{a, c} {
			_, err := l.TryRLock(ctx, "x", 0, auto)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			_, err = l.TryRLock(ctx, "x", 50*time.Millisecond, auto)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		}
		require.NoError(t, w.Unlock())
		r4 := rlock(t, b, "x", auto)
		require.Greater(t, r4.Token(), w.Token())
		require.NoError(t, r4.Unlock())
	})
}

// The first shared hold of a process costs at most two statements, further ones none. A name that
// is never locked shared costs what it cost before.
func TestSharedCost(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		require.NoError(t, acquire(t, l, "warm up", auto).Unlock())
		statements := func(do func()) int64 {
			before := l.Stats().Statements
			do()
			return l.Stats().Statements - before
		}
		var first *mysqllock.Lock
		for _, name := range []string{"fresh", "fresh"} {
			require.LessOrEqual(t, statements(func() { first = rlock(t, l, name, auto) }), int64(2))
			start := time.Now()
			further := statements(func() {
				for range 100 {
					k, err := l.TryRLock(ctx, name, 0, auto)
					require.NoError(t, err)
					defer k.Unlock()
				}
			})
			const looks = 50 * time.Millisecond // how often it looks for exclusive requests
			require.LessOrEqual(t, further, int64(time.Since(start)/looks))
			require.LessOrEqual(t, statements(func() { require.NoError(t, first.Unlock()) }), int64(1))
		}
		require.Equal(t, int64(2), statements(func() { require.NoError(t, acquire(t, l, "warm up", auto).Unlock()) }))
		require.LessOrEqual(t, statements(func() { require.NoError(t, acquire(t, l, "fresh", auto).Unlock()) }), int64(4))
	})
}

// Requests of both modes are served in order of arrival, within a process and between processes.
func TestSharedOrder(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for _, processes := range []int{1, 3} {
			name := fmt.Sprint("order of ", processes)
			lockers := make([]*mysqllock.Locker, processes)
			for i := range lockers {
				lockers[i] = e.locker(t)
			}
			holder := acquire(t, e.locker(t), name, auto)
			const order = "RRRWRRWR"
			var mu sync.Mutex
			var served []int
			var holding [len(order)]*acquiring
			release := make([]chan struct{}, len(order))
			for i, mode := range order {
				l := lockers[i%processes]
				before := l.Stats().Waiting
				release[i] = make(chan struct{})
				holding[i] = try(func() (*mysqllock.Lock, error) {
					lock := l.RLock
					if mode == 'W' {
						lock = l.Lock
					}
					k, err := lock(ctx, name, auto)
					if err != nil {
						return nil, err
					}
					mu.Lock()
					served = append(served, i)
					mu.Unlock()
					<-release[i]
					return k, k.Unlock()
				})
				requireWaiting(t, l, before+1)
				if processes > 1 {
					eventually(t, "listed", func() bool { return requireHeld(t, l, name, true).Waiters >= min(i+1, processes) })
				}
			}
			servedAre := func(n int) {
				t.Helper()
				eventually(t, fmt.Sprint(n, " served"), func() bool { mu.Lock(); defer mu.Unlock(); return len(served) == n })
				time.Sleep(30 * time.Millisecond)
				mu.Lock()
				defer mu.Unlock()
				require.Len(t, served, n)
			}
			require.NoError(t, holder.Unlock())
			if processes > 1 {
				for i := range release { // the order between processes is that in which they began to wait
					close(release[i])
				}
				for _, a := range holding {
					a.lock(t)
				}
				continue
			}
			servedAre(3)
			close(release[0])
			close(release[1])
			servedAre(3)
			close(release[2])
			servedAre(4)
			close(release[3])
			servedAre(6)
			close(release[4])
			close(release[5])
			servedAre(7)
			close(release[6])
			servedAre(8)
			close(release[7])
			for _, a := range holding {
				a.lock(t)
			}
		}
	})
}

// A waiting exclusive request holds back shared ones that come after it, also in other
// processes. When it gives up, they go on at once.
func TestSharedHeldBack(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b, c := e.locker(t), e.locker(t), e.locker(t)
		r := rlock(t, a, "x", auto)
		cancelled, cancel := context.WithCancel(ctx)
		w := try(func() (*mysqllock.Lock, error) { return b.Lock(cancelled, "x", auto) })
		requireWaiting(t, b, 1)
		w.requireWaits(t, 200*time.Millisecond)
		var later []*acquiring
		for _, l := range []*mysqllock.Locker{a, b, c} {
			_, err := l.TryRLock(ctx, "x", 0, auto)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			later = append(later, try(func() (*mysqllock.Lock, error) { return l.RLock(ctx, "x", auto) }))
		}
		for _, k := range later {
			k.requireWaits(t, 50*time.Millisecond)
		}
		cancel()
		<-w.end
		require.ErrorIs(t, w.err, mysqllock.ErrNotAcquired)
		require.ErrorIs(t, w.err, context.Canceled)
		start := time.Now()
		for _, k := range later {
			require.NoError(t, k.lock(t).Unlock())
		}
		assert.Less(t, time.Since(start), 2*time.Second)
		require.NoError(t, r.Unlock())

		// And when it has had its turn.
		r = rlock(t, a, "x", auto)
		w = try(func() (*mysqllock.Lock, error) { return b.Lock(ctx, "x", auto) })
		w.requireWaits(t, 100*time.Millisecond)
		next := try(func() (*mysqllock.Lock, error) { return c.RLock(ctx, "x", auto) })
		next.requireWaits(t, 50*time.Millisecond)
		require.NoError(t, r.Unlock())
		k := w.lock(t)
		next.requireWaits(t, 50*time.Millisecond)
		require.NoError(t, k.Unlock())
		require.NoError(t, next.lock(t).Unlock())
	})
}

// When an exclusive request has given up, a shared one without a wait is admitted. On a busy machine,
// to release the claim of the name may take longer than the call waits for it.
func TestSharedAfterAWriterThatGaveUp(t *testing.T) {
	const rounds = 20
	onEach(t, func(t *testing.T, e env) {
		holder, writer, other := e.locker(t), e.locker(t), e.locker(t)
		defer rlock(t, holder, "x", auto).Unlock()
		for name, l := range map[string]*mysqllock.Locker{"the holder's process": holder, "the writer's": writer, "another": other} {
			refused := 0
			for range rounds {
				_, err := writer.TryLock(ctx, "x", 50*time.Millisecond, auto)
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
				k, err := l.TryRLock(ctx, "x", 0, auto)
				if err != nil {
					refused++
					continue
				}
				require.NoError(t, k.Unlock())
			}
			require.LessOrEqual(t, refused, rounds/4, name)
		}
	})
}

func TestQueuedReadersEnterTogether(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		lockers := []*mysqllock.Locker{e.locker(t), e.locker(t), e.locker(t), e.locker(t)}
		w := acquire(t, e.locker(t), "x", auto)
		var entered sync.WaitGroup
		var readers []*acquiring
		for i := range 20 {
			entered.Add(1)
			readers = append(readers, try(func() (*mysqllock.Lock, error) {
				k, err := lockers[i%4].RLock(ctx, "x", auto)
				entered.Done()
				entered.Wait() // each holds until all do
				return k, err
			}))
		}
		for _, l := range lockers {
			requireWaiting(t, l, 5)
		}
		require.NoError(t, w.Unlock())
		for _, r := range readers {
			require.NoError(t, r.lock(t).Unlock())
		}
	})
}

// A writer among constant readers of several processes gets its turns.
func TestWriterAmongReaders(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		stop := make(chan struct{})
		var writing, violations atomic.Int64
		var readers sync.WaitGroup
		for range 3 {
			l := e.locker(t)
			for range 4 {
				readers.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						k, err := l.TryRLock(ctx, "x", 20*time.Second, auto)
						if !assert.NoError(t, err) {
							return
						}
						violations.Add(writing.Load())
						time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond)
						violations.Add(writing.Load())
						assert.NoError(t, k.Unlock())
					}
				})
			}
		}
		writer := e.locker(t)
		for range 10 {
			k, err := writer.TryLock(ctx, "x", 20*time.Second, auto)
			require.NoError(t, err)
			writing.Store(1)
			time.Sleep(2 * time.Millisecond)
			writing.Store(0)
			require.NoError(t, k.Unlock())
			time.Sleep(5 * time.Millisecond)
		}
		close(stop)
		readers.Wait()
		require.Zero(t, violations.Load())
	})
}

func TestSharedReentry(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		owner := mysqllock.WithOwner(ctx)
		before := a.Stats().Statements

		// Shared in shared, also while an exclusive request waits.
		r1, err := a.RLock(owner, "x", auto)
		require.NoError(t, err)
		cancelled, cancel := context.WithCancel(ctx)
		w := try(func() (*mysqllock.Lock, error) { return b.Lock(cancelled, "x", auto) })
		w.requireWaits(t, 100*time.Millisecond)
		r2, err := a.TryRLock(r1.Context(), "x", 0, auto)
		require.NoError(t, err)
		require.Equal(t, r1.Token(), r2.Token())
		_, err = a.TryLock(owner, "x", mysqllock.WaitForever, auto)
		require.ErrorIs(t, err, mysqllock.ErrUpgrade)
		require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
		cancel()
		<-w.end
		_, err = a.TryLock(owner, "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrUpgrade)
		require.NoError(t, r1.Unlock())
		require.NoError(t, r2.Err())
		require.NoError(t, r2.Unlock())

		// Shared in exclusive; the exclusive handle is unlocked last, and then first.
		k, err := a.Lock(owner, "x", auto)
		require.NoError(t, err)
		r, err := a.TryRLock(owner, "x", 0, auto)
		require.NoError(t, err)
		require.True(t, r.Shared())
		require.Equal(t, k.Token(), r.Token())
		require.NoError(t, r.Unlock())
		_, err = b.TryRLock(ctx, "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		r, err = a.TryRLock(owner, "x", 0, auto)
		require.NoError(t, err)
		waitingExclusive := try(func() (*mysqllock.Lock, error) { return b.Lock(ctx, "x", auto) })
		requireWaiting(t, b, 1)
		waitingExclusive.requireWaits(t, 50*time.Millisecond)
		require.NoError(t, k.Unlock())
		require.NoError(t, r.Err())
		_, err = a.TryLock(owner, "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrUpgrade)
		waitingExclusive.requireWaits(t, 300*time.Millisecond)
		require.NoError(t, r.Unlock())
		next := waitingExclusive.lock(t)
		require.Greater(t, next.Token(), k.Token())
		require.NoError(t, next.Unlock())

		// Others may share a lock that has become shared.
		k, err = a.Lock(owner, "y", auto)
		require.NoError(t, err)
		r, err = a.TryRLock(owner, "y", 0, auto)
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
		for _, l := range []*mysqllock.Locker{a, b} {
			other := rlock(t, l, "y", auto)
			require.Greater(t, other.Token(), k.Token())
			require.NoError(t, other.Unlock())
		}
		_, err = b.TryLock(ctx, "y", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, r.Unlock())
		require.NoError(t, acquire(t, b, "y", auto).Unlock())
		require.Greater(t, a.Stats().Statements, before)
	})
}

// Each shared hold has a lease of its own, also within a process.
func TestSharedLeases(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t, mysqllock.WithLease(time.Second)), e.locker(t, mysqllock.WithLease(time.Second))
		short := rlock(t, a, "x", 300*time.Millisecond)
		long := rlock(t, a, "x", 2*time.Second)
		renewed := rlock(t, a, "x", auto)
		other := rlock(t, b, "x", auto)
		requireOver(t, short, mysqllock.ErrLost)
		require.NoError(t, long.Err())
		require.ErrorIs(t, short.Unlock(), mysqllock.ErrLost)
		requireOver(t, long, mysqllock.ErrLost)
		require.NoError(t, renewed.Err())
		require.NoError(t, renewed.Context().Err())
		time.Sleep(2 * time.Second) // the readers outlive the lease
		_, err := b.TryLock(ctx, "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, renewed.Unlock())
		_, err = a.TryLock(ctx, "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, other.Err())
		require.NoError(t, other.Unlock())
		require.NoError(t, acquire(t, b, "x", auto).Unlock())

		// Extend prolongs one hold.
		first, second := rlock(t, a, "y", 400*time.Millisecond), rlock(t, a, "y", 400*time.Millisecond)
		require.NoError(t, first.Extend(ctx, time.Minute))
		requireOver(t, second, mysqllock.ErrLost)
		require.NoError(t, first.Err())
		_, err = b.TryLock(ctx, "y", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, first.Unlock())
		require.NoError(t, acquire(t, b, "y", auto).Unlock())
	})
}

// The end of a short fixed lease lets a waiting exclusive request in, unless a longer one runs.
func TestSharedExpiry(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b, c := e.locker(t), e.locker(t), e.locker(t)
		rlock(t, a, "x", 500*time.Millisecond)
		long := rlock(t, b, "x", 2*time.Second)
		began := time.Now()
		w := acquire(t, c, "x", auto)
		require.Greater(t, time.Since(began), time.Second)
		require.ErrorIs(t, long.Err(), mysqllock.ErrLost)
		require.NoError(t, w.Unlock())
	})
}

// Guard of a shared hold keeps out exclusive owners, and no others.
func TestSharedGuard(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		db := e.db(t, "")
		r := rlock(t, a, "x", 400*time.Millisecond)
		tx, err := db.Begin()
		require.NoError(t, err)
		require.NoError(t, r.Guard(ctx, tx))
		require.NoError(t, rlock(t, b, "x", auto).Unlock())
		requireOver(t, r, mysqllock.ErrLost)
		require.NoError(t, rlock(t, b, "x", auto).Unlock())
		w := try(func() (*mysqllock.Lock, error) { return b.Lock(ctx, "x", auto) })
		w.requireWaits(t, 300*time.Millisecond)
		require.NoError(t, tx.Commit())
		k := w.lock(t)

		// A transaction of the exclusive owner keeps out shared ones.
		tx, err = db.Begin()
		require.NoError(t, err)
		require.NoError(t, k.Guard(ctx, tx))
		require.NoError(t, k.Unlock())
		_, err = a.TryRLock(ctx, "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		next := try(func() (*mysqllock.Lock, error) { return a.RLock(ctx, "x", auto) })
		next.requireWaits(t, 200*time.Millisecond)
		require.NoError(t, tx.Rollback())
		r = next.lock(t)

		// A stale holder's transaction fails.
		_, err = b.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		tx, err = db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.ErrorIs(t, r.Guard(ctx, tx), mysqllock.ErrLost)
		requireOver(t, r, mysqllock.ErrLost)
	})
}

func TestSharedForceUnlock(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b, c := e.locker(t), e.locker(t), e.locker(t)
		holders := []*mysqllock.Lock{rlock(t, a, "x", auto), rlock(t, a, "x", time.Minute), rlock(t, b, "x", time.Minute)}
		held, err := a.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		require.True(t, held)
		w := acquire(t, c, "x", auto)
		for _, k := range holders[:2] {
			requireOver(t, k, mysqllock.ErrLost)
			require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
		}
		require.ErrorIs(t, holders[2].Unlock(), mysqllock.ErrLost)
		require.NoError(t, w.Err())
		require.NoError(t, w.Unlock())
		held, err = a.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		require.False(t, held)
	})
}

// After ForceUnlock in another process, which this process has not noticed, further shared holds
// of it do not rely on the row that was freed.
func TestSharedAfterUnnoticedForceUnlock(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		for name, notice := range map[string]func(){
			"exclusive hold": func() { require.NoError(t, acquire(t, a, "exclusive hold", auto).Unlock()) },
			"look":           func() { time.Sleep(60 * time.Millisecond) },
		} {
			first := rlock(t, a, name, auto)
			forced, err := b.ForceUnlock(ctx, name)
			require.NoError(t, err)
			require.True(t, forced)
			notice()
			next := rlock(t, a, name, auto)
			requireHeld(t, b, name, true)
			_, err = b.TryLock(ctx, name, 0, auto)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
			require.NoError(t, next.Err())
			require.NoError(t, next.Unlock())
			require.ErrorIs(t, first.Unlock(), mysqllock.ErrLost)
		}
	})
}

func TestSharedClose(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		r1, r2 := rlock(t, a, "x", auto), rlock(t, a, "x", time.Minute)
		require.Equal(t, 2, a.Stats().Held)
		w := try(func() (*mysqllock.Lock, error) { return b.Lock(ctx, "x", auto) })
		w.requireWaits(t, 50*time.Millisecond)
		require.NoError(t, a.Close())
		requireOver(t, r1, mysqllock.ErrClosed)
		requireOver(t, r2, mysqllock.ErrClosed)
		require.ErrorIs(t, r1.Unlock(), mysqllock.ErrClosed)
		_, err := a.TryRLock(ctx, "x", 0, auto)
		require.ErrorIs(t, err, mysqllock.ErrClosed)
		require.NoError(t, w.lock(t).Unlock())

		// An exclusive request that waits for holders of shared locks leaves nothing behind.
		c, d := e.locker(t), e.locker(t)
		r := rlock(t, b, "y", auto)
		w = try(func() (*mysqllock.Lock, error) { return c.Lock(ctx, "y", auto) })
		w.requireWaits(t, 100*time.Millisecond)
		require.NoError(t, c.Close())
		<-w.end
		require.ErrorIs(t, w.err, mysqllock.ErrClosed)
		require.NoError(t, rlock(t, d, "y", auto).Unlock())
		require.NoError(t, r.Unlock())
	})
}

// Random requests of several processes: an exclusive owner is alone, and tokens rise.
func TestSharedAndExclusiveAtRandom(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		var mu sync.Mutex
		var readers, writers int
		var lastWrite, lastRead uint64
		var crowd sync.WaitGroup
		for range 4 {
			l := e.locker(t)
			for range 4 {
				crowd.Go(func() {
					for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
						shared := rand.IntN(4) > 0
						lock := l.TryLock
						if shared {
							lock = l.TryRLock
						}
						k, err := lock(ctx, "x", time.Duration(rand.IntN(40))*time.Millisecond, []time.Duration{auto, 3 * time.Second}[rand.IntN(2)])
						if errors.Is(err, mysqllock.ErrNotAcquired) || errors.Is(err, mysqllock.ErrUnavailable) {
							continue
						}
						if !assert.NoError(t, err) {
							return
						}
						mu.Lock()
						if shared {
							readers++
							assert.Greater(t, k.Token(), lastWrite)
							lastRead = max(lastRead, k.Token())
						} else {
							writers++
							assert.Greater(t, k.Token(), max(lastRead, lastWrite))
							lastWrite = k.Token()
						}
						assert.True(t, writers == 0 || writers == 1 && readers == 0, "%d beside %d", writers, readers)
						mu.Unlock()
						time.Sleep(time.Duration(rand.IntN(3)) * time.Millisecond)
						mu.Lock()
						if shared {
							readers--
						} else {
							writers--
						}
						mu.Unlock()
						assert.NoError(t, k.Unlock())
					}
				})
			}
		}
		crowd.Wait()
		require.NotZero(t, lastRead)
		require.NotZero(t, lastWrite)
		require.NoError(t, acquire(t, e.locker(t), "x", auto).Unlock())
	})
}
