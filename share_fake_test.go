package mysqllock

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/storetest"
)

// A faultyStore is a fake store whose looks can fail.
type faultyStore struct {
	*storetest.Store
	noLooks    atomic.Bool
	downgrades atomic.Int32 // calls
}

func (s *faultyStore) Look(ctx context.Context, names []string) (map[string]store.Row, time.Time, error) {
	if s.noLooks.Load() {
		return nil, time.Now(), errors.New("no reply")
	}
	return s.Store.Look(ctx, names)
}

func (s *faultyStore) Downgrade(ctx context.Context, from store.Claim, to store.AcquireRequest) (store.Grant, store.Process, error) {
	s.downgrades.Add(1)
	return s.Store.Downgrade(ctx, from, to)
}

// onFakeStore runs a test in a bubble. locker returns a Locker of a process of its own.
func onFakeStore(t *testing.T, test func(t *testing.T, locker func() (*Locker, *faultyStore))) {
	synctest.Test(t, func(t *testing.T) {
		table := storetest.NewTable()
		test(t, func() (*Locker, *faultyStore) {
			self := store.NewProcess()
			s := &faultyStore{Store: table.NewStore(self)}
			c := config{lease: DefaultLease, poll: time.Second, signal: true, handoff: true, log: slog.New(slog.DiscardHandler)}
			l := newLocker(s, self, c)
			t.Cleanup(func() { l.Close() })
			return l, s
		})
	})
}

// No hold joins a share whose lease has ended, even if the timers are late.
func TestShareThatMayBeLost(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		k, err := l.TryRLock(bg, "x", 0, 30*time.Second)
		require.NoError(t, err)
		k.hold.lease.Load().StopTimer()
		k.hold.timer.Stop()
		time.Sleep(29 * time.Second)
		next, err := l.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		require.NoError(t, next.Err())
		require.ErrorIs(t, k.Err(), ErrLost)
	})
}

// No hold joins a share if the database does not say that no exclusive request waits.
func TestShareWithoutALook(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		other, _ := locker()
		k, err := l.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		acquired := make(chan *Lock, 1)
		go func() {
			k, _ := other.TryLock(bg, "x", time.Minute, AutoRenew)
			acquired <- k
		}()
		time.Sleep(time.Second)
		s.noLooks.Store(true)
		_, err = l.TryRLock(bg, "x", 0, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)
		s.noLooks.Store(false)
		require.NoError(t, k.Unlock())
		require.NoError(t, (<-acquired).Err())
	})
}

// A name that several hold shared stays taken for the longest of the minimum times.
func TestUnlockAfterOfSharedHolds(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		other, _ := locker()
		start := time.Now()
		var all []*Lock
		for range 3 {
			k, err := l.TryRLock(bg, "x", 0, AutoRenew)
			require.NoError(t, err)
			all = append(all, k)
		}
		require.NoError(t, all[0].UnlockAfter(20*time.Second))
		require.NoError(t, all[1].UnlockAfter(10*time.Second))
		require.NoError(t, all[2].Unlock())
		_, err := other.TryLock(bg, "x", time.Minute, AutoRenew)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), 20*time.Second)
		require.Less(t, time.Since(start), 22*time.Second)
	})
}

// both acquires a lock exclusively, and shared by the same owner.
func both(t *testing.T, l *Locker) (exclusive, shared *Lock) {
	t.Helper()
	owner := WithOwner(bg)
	exclusive, err := l.TryLock(owner, "x", 0, AutoRenew)
	require.NoError(t, err)
	shared, err = l.TryRLock(owner, "x", 0, AutoRenew)
	require.NoError(t, err)
	return exclusive, shared
}

// A lock that was guarded stays exclusive, without a statement: the transaction may be open.
func TestGuardedLockStaysExclusive(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		other, _ := locker()
		exclusive, shared := both(t, l)
		exclusive.hold.guarded.Store(true)
		require.NoError(t, exclusive.Unlock())
		require.Zero(t, s.downgrades.Load())
		_, err := other.TryRLock(bg, "x", 0, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.NoError(t, shared.Unlock())
		_, err = other.TryRLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
	})
}

// Those who wait for a lock shared, in the same process and in another, acquire it as soon as it
// has become shared.
func TestLockThatBecomesShared(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		other, _ := locker()
		exclusive, shared := both(t, l)
		errs := make(chan error)
		for _, in := range []*Locker{l, other} {
			go func() {
				_, err := in.TryRLock(bg, "x", time.Minute, AutoRenew)
				errs <- err
			}()
		}
		time.Sleep(10 * time.Second)
		start := time.Now()
		require.NoError(t, exclusive.Unlock())
		for range 2 {
			require.NoError(t, <-errs)
			require.Less(t, time.Since(start), 100*time.Millisecond)
		}
		require.NoError(t, shared.Err())
	})
}
