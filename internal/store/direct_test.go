package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A grant counts from the read that finds it, so it is read only on a connection on which a signal
// has arrived: another one may lead to a replica, which is behind.
func TestGrantIsReadAfterASignal(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		holder, head, self := all[0], all[1], all[1].self
		defer head.CloseListener()
		for name, signal := range map[string]bool{"signalled": true, "not signalled": false} {
			c := granted(t, holder, name, time.Hour)
			defer holder.HoldEnded()
			_, err := head.Acquire(ctx, AcquireRequest{Claim: Claim{name, NewOwnerID(self)}, Lease: time.Hour, EnlistAs: self.Direct()})
			require.NoError(t, err)
			head.CloseListener()
			_, err = head.Listen(ctx, []string{name}, time.Millisecond)
			require.NoError(t, err)
			if signal {
				time.AfterFunc(50*time.Millisecond, func() { holder.Signal(ctx, self) })
				w, err := head.Listen(ctx, []string{name}, 10*time.Second)
				require.NoError(t, err)
				require.True(t, w.Signalled)
			}
			_, next, err := holder.ReleaseToNext(ctx, c, NewGrantID())
			require.NoError(t, err)
			require.True(t, next.TakesGrants())
			w, err := head.Listen(ctx, []string{name}, 10*time.Second)
			require.NoError(t, err)
			require.Equal(t, Wakeup{Name: name}, w)
			grants, err := head.Granted(ctx, []string{name})
			require.NoError(t, err)
			require.Equal(t, signal, len(grants) == 1, name)
		}
	})
}

// Sessions that see what is not committed, and servers whose replicas execute the text of
// statements, hand nothing over without an UPDATE of the next holder.
func TestDirectHandoffNeedsSettings(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(2)
		holder, head, self := all[0], all[1], all[1].self
		defer head.CloseListener()
		c := granted(t, holder, "x", time.Hour)
		defer holder.HoldEnded()
		require.False(t, holder.logsStatements.Load())
		require.False(t, holder.dirtyReads.Load())
		_, err := head.Acquire(ctx, AcquireRequest{Claim: Claim{"x", NewOwnerID(self)}, Lease: time.Hour, EnlistAs: self.Direct()})
		require.NoError(t, err)
		_, err = head.Listen(ctx, []string{"x"}, time.Millisecond)
		require.NoError(t, err)
		holder.logsStatements.Store(true)
		_, next, err := holder.ReleaseToNext(ctx, c, NewGrantID())
		require.NoError(t, err)
		require.Equal(t, self, next)
		head.signalled = true
		head.dirtyReads.Store(true)
		grants, err := head.Granted(ctx, []string{"x"})
		require.NoError(t, err)
		require.Empty(t, grants)
	})
}
