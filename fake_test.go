package mysqllock

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"

	"github.com/stretchr/testify/require"
)

var _ table = (*fakestore.Store)(nil)

// onStore returns a Locker of a process of its own.
func onStore(tb testing.TB, self store.Process, repo repository) *Locker {
	c := config{lease: DefaultLease, poll: time.Second, signal: true, handoff: true, direct: true, log: slog.New(slog.DiscardHandler)}
	l := newLocker(repo, self, c)
	tb.Cleanup(func() { l.Close() })
	return l
}

// Lockers run on the fake store, whose contract is that of the servers: they wait for each
// other, are signalled, keep their locks by a session, and lose them by force.
func TestFakeStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := fakestore.NewTable()
		locker := func() *Locker {
			self := store.NewProcess()
			return onStore(t, self, table.NewStore(self))
		}
		first, second := locker(), locker()
		held, err := first.TryLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		time.Sleep(3 * DefaultLease) // by now a session keeps the row
		_, err = second.TryLock(bg, "x", 0, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)

		released := make(chan time.Time, 1)
		time.AfterFunc(time.Minute, func() {
			released <- time.Now()
			held.Unlock()
		})
		next, err := second.TryLock(bg, "x", time.Hour, AutoRenew)
		require.NoError(t, err)
		require.Less(t, time.Since(<-released), time.Second, "it is signalled")
		require.Greater(t, next.Token(), held.Token())

		operator := table.NewStore(store.NewProcess())
		time.Sleep(time.Minute)
		_, _, err = operator.ForceUnlock(bg, "x")
		require.NoError(t, err)
		select {
		case <-next.Context().Done():
		case <-time.After(2 * DefaultLease):
			require.Fail(t, "the loss is not reported")
		}
		require.ErrorIs(t, next.Err(), ErrLost)
	})
}
