package mysqllock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
)

// downgraded returns a hold that was exclusive, and is shared now.
func downgraded(t *testing.T, l *mysqllock.Locker, name string, held time.Duration) *mysqllock.Lock {
	t.Helper()
	k := acquire(t, l, name, auto)
	time.Sleep(held)
	shared, err := l.TryRLock(k.Context(), name, 0, auto)
	require.NoError(t, err)
	require.NoError(t, k.Unlock())
	return shared
}

// taken returns for how long nobody else can have the name exclusively.
func (e env) taken(t *testing.T, name string) (left time.Duration) {
	t.Helper()
	var micros int64
	require.NoError(t, e.db(t, "").QueryRow("SELECT COALESCE(MAX(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at)), 0) FROM mysqllock WHERE name_text = ?", name).Scan(&micros))
	return time.Duration(micros) * time.Microsecond
}

func TestDetachOfADowngradedLock(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		k := downgraded(t, l, "x", 0)
		token := k.Token()
		ticket, err := k.Detach(ctx, time.Minute)
		require.NoError(t, err)
		k, err = other.Attach(ctx, ticket, auto)
		require.NoError(t, err)
		require.Equal(t, token, k.Token())
		require.NoError(t, k.Unlock())
		require.NoError(t, acquire(t, l, "x", auto).Unlock())
	})
}

func TestDowngradeKeepsTheHolder(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		k, err := l.TryLock(mysqllock.WithHolder(ctx, "job 1"), "x", 0, auto)
		require.NoError(t, err)
		shared, err := l.TryRLock(k.Context(), "x", 0, auto)
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
		list, err := l.List(ctx)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, "job 1", list[0].Holder)
		require.NoError(t, shared.Unlock())
	})
}

func TestUnlockAfterADowngrade(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		k := downgraded(t, l, "x", 2*time.Second)
		require.NoError(t, k.UnlockAfter(10*time.Second))
		require.InDelta(t, 8, e.taken(t, "x").Seconds(), 0.9)
	})
}

func TestUnlockAfterAnAttachOfASharedLock(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		k := rlock(t, l, "x", auto)
		time.Sleep(2 * time.Second)
		ticket, err := k.Detach(ctx, time.Minute)
		require.NoError(t, err)
		k, err = l.Attach(ctx, ticket, auto)
		require.NoError(t, err)
		require.NoError(t, k.UnlockAfter(10*time.Second))
		require.InDelta(t, 8, e.taken(t, "x").Seconds(), 0.9)
	})
}

// An UnlockAfter of one shared holder counts whatever becomes of the others in its process.
func TestUnlockAfterByOneOfSeveralSharedHolders(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for what, end := range map[string]func(l *mysqllock.Locker, k *mysqllock.Lock){
			"nothing":  func(*mysqllock.Locker, *mysqllock.Lock) {},
			"unlocked": func(_ *mysqllock.Locker, k *mysqllock.Lock) { require.NoError(t, k.Unlock()) },
			"lost": func(_ *mysqllock.Locker, k *mysqllock.Lock) {
				<-k.Context().Done()
				time.Sleep(100 * time.Millisecond)
			},
			"detached": func(_ *mysqllock.Locker, k *mysqllock.Lock) {
				_, err := k.Detach(ctx, time.Second)
				require.NoError(t, err)
			},
			"attached": func(l *mysqllock.Locker, k *mysqllock.Lock) {
				ticket, err := k.Detach(ctx, time.Minute)
				require.NoError(t, err)
				k, err = l.Attach(ctx, ticket, time.Minute)
				require.NoError(t, err)
				require.NoError(t, k.Unlock())
			},
			"closed": func(l *mysqllock.Locker, k *mysqllock.Lock) { require.NoError(t, l.Close()) },
		} {
			t.Run(what, func(t *testing.T) {
				l := e.locker(t)
				first, second := rlock(t, l, what, time.Second), rlock(t, l, what, time.Second)
				require.NoError(t, first.UnlockAfter(time.Hour))
				end(l, second)
				require.InDelta(t, 3600, e.taken(t, what).Seconds(), 10)
				held, err := e.locker(t).ForceUnlock(ctx, what)
				require.NoError(t, err)
				require.True(t, held)
				require.NoError(t, acquire(t, e.locker(t), what, auto).Unlock())
			})
		}
	})
}

func TestManySharedLocksAreDetached(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		for i := range 110 {
			began := time.Now()
			k, err := l.TryRLock(ctx, "x", 2*time.Second, auto)
			require.NoError(t, err, "%d, after %v", i, time.Since(began))
			_, err = k.Detach(ctx, time.Hour)
			require.NoError(t, err)
		}
	})
}

func TestCrowdTakesPermitsWithoutWaiting(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		for round := range 5 {
			const n = 10
			errs := make(chan error, n)
			s := l.Semaphore(fmt.Sprint("s", round), n)
			for range n {
				go func() {
					_, err := s.TryAcquire(ctx, 0, time.Minute)
					errs <- err
				}()
			}
			for range n {
				require.NoError(t, <-errs)
			}
		}
	})
}

// A shared request does not join a hold that was attached, or has become shared, if an exclusive
// one of another process came before.
func TestSharedRequestAfterAnAttach(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for what, begin := range map[string]func(l *mysqllock.Locker, waits func()) *mysqllock.Lock{
			"attached": func(l *mysqllock.Locker, waits func()) *mysqllock.Lock {
				ticket, err := rlock(t, l, "attached", auto).Detach(ctx, time.Minute)
				require.NoError(t, err)
				waits()
				k, err := l.Attach(ctx, ticket, auto)
				require.NoError(t, err)
				return k
			},
			"downgraded": func(l *mysqllock.Locker, waits func()) *mysqllock.Lock {
				k := acquire(t, l, "downgraded", auto)
				waits()
				shared, err := l.TryRLock(k.Context(), "downgraded", 0, auto)
				require.NoError(t, err)
				require.NoError(t, k.Unlock())
				return shared
			},
		} {
			l, other := e.locker(t), e.locker(t)
			var writer *acquiring
			k := begin(l, func() {
				writer = try(func() (*mysqllock.Lock, error) { return other.TryLock(ctx, what, 10*time.Second, auto) })
				writer.requireWaits(t, 300*time.Millisecond)
			})
			_, err := l.TryRLock(ctx, what, 0, auto)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired, what)
			require.NoError(t, k.Unlock())
			require.NoError(t, writer.lock(t).Unlock())
		}
	})
}
