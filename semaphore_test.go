package mysqllock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
)

// permit acquires a permit that must be free.
func permit(t testing.TB, s *mysqllock.Semaphore, lease time.Duration) *mysqllock.Lock {
	t.Helper()
	k, err := s.TryAcquire(ctx, 5*time.Second, lease)
	require.NoError(t, err)
	return k
}

func requireNoPermit(t testing.TB, s *mysqllock.Semaphore) {
	t.Helper()
	_, err := s.TryAcquire(ctx, 0, auto)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	require.NotErrorIs(t, err, mysqllock.ErrUnavailable)
}

func TestSemaphore(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t, mysqllock.WithIdentity("a")), e.locker(t, mysqllock.WithIdentity("b"))
		first, second := a.Semaphore("x", 3), b.Semaphore("x", 3)
		for _, limit := range []int{-1, 0, 10_001} {
			_, err := a.Semaphore("x", limit).TryAcquire(ctx, 0, auto)
			require.ErrorIs(t, err, mysqllock.ErrInvalidLimit)
		}
		_, err := a.Semaphore("\n", 1).Acquire(ctx, auto)
		require.ErrorIs(t, err, mysqllock.ErrInvalidName)

		slots := map[int]*mysqllock.Lock{}
		for _, s := range []*mysqllock.Semaphore{first, second, first} {
			k := permit(t, s, auto)
			require.Equal(t, "x", k.Name())
			require.False(t, k.Shared())
			require.Contains(t, []int{1, 2, 3}, k.Slot())
			require.NotContains(t, slots, k.Slot())
			slots[k.Slot()] = k
		}
		requireNoPermit(t, first)
		requireNoPermit(t, second)
		_, err = first.TryAcquire(ctx, 100*time.Millisecond, auto)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)

		holders, err := second.Holders(ctx)
		require.NoError(t, err)
		require.Len(t, holders, 3)
		for i, h := range holders {
			require.Equal(t, i+1, h.Slot)
			require.Equal(t, "x", h.Name)
			require.True(t, h.Held)
			require.Equal(t, slots[i+1].Token(), h.Token)
		}

		// The lock of that name has nothing to do with it.
		require.NoError(t, acquire(t, a, "x", auto).Unlock())
		require.NoError(t, rlock(t, a, "x", auto).Unlock())
		requireHeld(t, a, "x", false)

		freed := slots[2]
		require.NoError(t, freed.Unlock())
		require.ErrorIs(t, freed.Unlock(), mysqllock.ErrNotHeld)
		k := permit(t, second, auto)
		require.Equal(t, 2, k.Slot())
		require.Greater(t, k.Token(), freed.Token())
		requireNoPermit(t, first)

		// Each acquire takes another permit, whatever its owner holds.
		require.NoError(t, k.Unlock())
		again, err := first.TryAcquire(slots[1].Context(), 0, auto)
		require.NoError(t, err)
		require.NotEqual(t, slots[1].Slot(), again.Slot())
		requireNoPermit(t, second)
	})
}

func TestSemaphoreCost(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		require.NoError(t, acquire(t, l, "warm up", auto).Unlock())
		s := l.Semaphore("x", 10)
		for range 3 {
			before := l.Stats().Statements
			k := permit(t, s, auto)
			require.LessOrEqual(t, l.Stats().Statements-before, int64(2))
			before = l.Stats().Statements
			require.NoError(t, k.Unlock())
			require.Equal(t, int64(1), l.Stats().Statements-before)
		}
	})
}

// A permit is a lock like any other: it is renewed, guarded, extended and lost.
func TestPermitIsALock(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t, mysqllock.WithLease(time.Second)), e.locker(t)
		s, other := a.Semaphore("x", 2), b.Semaphore("x", 2)
		renewed, fixed := permit(t, s, auto), permit(t, s, 400*time.Millisecond)
		requireOver(t, fixed, mysqllock.ErrLost)
		require.ErrorIs(t, fixed.Unlock(), mysqllock.ErrLost)
		next := permit(t, other, time.Minute)
		require.Equal(t, fixed.Slot(), next.Slot())
		require.Greater(t, next.Token(), fixed.Token())
		time.Sleep(1500 * time.Millisecond)
		require.NoError(t, renewed.Err())
		requireNoPermit(t, other)

		db := e.db(t, "")
		tx, err := db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, next.Guard(ctx, tx))
		require.NoError(t, next.Extend(ctx, time.Hour))
		require.NoError(t, next.Unlock())
		requireNoPermit(t, s) // the transaction may still commit
		waits := try(func() (*mysqllock.Lock, error) { return s.Acquire(ctx, auto) })
		waits.requireWaits(t, 200*time.Millisecond)
		require.NoError(t, tx.Commit())
		require.NoError(t, waits.lock(t).Unlock())
		require.NoError(t, renewed.Unlock())
	})
}

// Waiters of several processes are served in order of arrival, and soon.
func TestSemaphoreOrder(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		holder := e.locker(t)
		k1, k2 := permit(t, holder.Semaphore("x", 2), auto), permit(t, holder.Semaphore("x", 2), auto)
		var mu sync.Mutex
		var served []int
		var all []*acquiring
		for i := range 6 {
			l := e.locker(t)
			all = append(all, try(func() (*mysqllock.Lock, error) {
				k, err := l.Semaphore("x", 2).Acquire(ctx, auto)
				mu.Lock()
				served = append(served, i)
				mu.Unlock()
				return k, err
			}))
			eventually(t, "the process is in the wait queue", func() bool {
				holders, err := holder.Semaphore("x", 2).Holders(ctx)
				require.NoError(t, err)
				return holders[0].Waiters == i+1
			})
			all[i].requireWaits(t, 0)
		}
		start := time.Now()
		require.NoError(t, k1.Unlock())
		for i := range 6 {
			require.NoError(t, all[i].lock(t).Unlock())
		}
		assert.Less(t, time.Since(start), 3*time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, []int{0, 1, 2, 3, 4, 5}, served)
		require.NoError(t, k2.Unlock())
	})
}

// Two permits that are released at once serve two waiting processes.
func TestTwoPermitsAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		holder := e.locker(t)
		k1, k2 := permit(t, holder.Semaphore("x", 2), auto), permit(t, holder.Semaphore("x", 2), auto)
		var all []*acquiring
		for range 2 {
			l := e.locker(t)
			all = append(all, try(func() (*mysqllock.Lock, error) { return l.Semaphore("x", 2).Acquire(ctx, auto) }))
			requireWaiting(t, l, 1)
			time.Sleep(50 * time.Millisecond)
		}
		start := time.Now()
		require.NoError(t, errors.Join(k1.Unlock(), k2.Unlock()))
		for _, a := range all {
			a.lock(t)
		}
		assert.Less(t, time.Since(start), 900*time.Millisecond, "no waiter waits for its poller")
	})
}

// A caller gets no permit while as many as its own limit are held, in whatever slots.
func TestLimitsDiffer(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		large, small := a.Semaphore("x", 4), b.Semaphore("x", 2)
		var held []*mysqllock.Lock
		for range 4 {
			held = append(held, permit(t, large, auto))
		}
		for _, k := range held {
			requireNoPermit(t, small)
			if k.Slot() <= 2 {
				require.NoError(t, k.Unlock())
			}
		}
		requireNoPermit(t, small) // two are held, beyond its slots
		waits := try(func() (*mysqllock.Lock, error) { return small.Acquire(ctx, auto) })
		requireWaiting(t, b, 1)
		waits.requireWaits(t, 100*time.Millisecond)
		for _, k := range held {
			if k.Slot() == 3 {
				require.NoError(t, k.Unlock())
			}
		}
		require.LessOrEqual(t, waits.lock(t).Slot(), 2)
		requireNoPermit(t, small)
		k := permit(t, large, auto)
		require.NoError(t, k.Unlock())
	})
}

// Random requests reach the limit, and never exceed it.
func TestSemaphoreAtRandom(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		const limit = 3
		var mu sync.Mutex
		held, most := map[int]bool{}, 0
		last := map[int]uint64{}
		var crowd sync.WaitGroup
		for range 4 {
			s := e.locker(t).Semaphore("x", limit)
			for range 3 {
				crowd.Go(func() {
					for end := time.Now().Add(4 * time.Second); time.Now().Before(end); {
						k, err := s.TryAcquire(ctx, time.Duration(rand.IntN(400))*time.Millisecond, auto)
						if errors.Is(err, mysqllock.ErrNotAcquired) || errors.Is(err, mysqllock.ErrUnavailable) {
							continue
						}
						if !assert.NoError(t, err) {
							return
						}
						mu.Lock()
						assert.False(t, held[k.Slot()], "slot %d", k.Slot())
						assert.Greater(t, k.Token(), last[k.Slot()])
						held[k.Slot()], last[k.Slot()] = true, k.Token()
						most = max(most, len(held))
						mu.Unlock()
						time.Sleep(time.Duration(rand.IntN(40)) * time.Millisecond)
						mu.Lock()
						delete(held, k.Slot())
						mu.Unlock()
						assert.NoError(t, k.Unlock())
					}
				})
			}
		}
		crowd.Wait()
		require.Equal(t, limit, most)
	})
}

func TestSemaphoreClose(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		k := permit(t, a.Semaphore("x", 1), auto)
		waits := try(func() (*mysqllock.Lock, error) { return b.Semaphore("x", 1).Acquire(ctx, auto) })
		waits.requireWaits(t, 100*time.Millisecond)
		require.NoError(t, a.Close())
		requireOver(t, k, mysqllock.ErrClosed)
		require.NoError(t, waits.lock(t).Unlock())

		// A waiter that gives up leaves nothing behind.
		k = permit(t, b.Semaphore("y", 1), auto)
		c := e.locker(t)
		cancelled, cancel := context.WithCancel(ctx)
		waits = try(func() (*mysqllock.Lock, error) { return c.Semaphore("y", 1).Acquire(cancelled, auto) })
		requireWaiting(t, c, 1)
		waits.requireWaits(t, 100*time.Millisecond)
		cancel()
		<-waits.end
		require.ErrorIs(t, waits.err, mysqllock.ErrNotAcquired)
		require.NoError(t, k.Unlock())
		start := time.Now()
		require.NoError(t, permit(t, e.locker(t).Semaphore("y", 1), auto).Unlock())
		assert.Less(t, time.Since(start), time.Second)
	})
}
