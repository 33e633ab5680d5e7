package mysqllock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Permits that one statement releases serve as many processes that wait: each wakes the next.
func TestPermitsReleasedAtOnce(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		for range 3 {
			_, err := l.Semaphore("x", 3).TryAcquire(bg, 0, AutoRenew)
			require.NoError(t, err)
		}
		errs := make(chan error)
		for range 3 {
			l, _ := locker()
			go func() {
				_, err := l.Semaphore("x", 3).TryAcquire(bg, time.Minute, AutoRenew)
				errs <- err
			}()
		}
		time.Sleep(10 * time.Second)
		start := time.Now()
		require.NoError(t, l.Close())
		for range 3 {
			require.NoError(t, <-errs)
		}
		require.Less(t, time.Since(start), 100*time.Millisecond)
	})
}

// An owner may hold several permits of a semaphore.
func TestPermitsOfOneOwner(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		owner, s := WithOwner(bg), l.Semaphore("x", 2)
		first, err := s.TryAcquire(owner, 0, AutoRenew)
		require.NoError(t, err)
		second, err := s.TryAcquire(owner, 0, AutoRenew)
		require.NoError(t, err)
		require.NotEqual(t, first.Slot(), second.Slot())
		_, err = s.TryAcquire(owner, 0, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.NoError(t, first.Unlock())
		require.NoError(t, second.Err())
	})
}
