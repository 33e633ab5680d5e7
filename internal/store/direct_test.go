package store

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A grant counts from the read that finds it, so it is read only on a connection on which a signal
// has arrived: another one may lead to a replica, which is behind.
func TestGrantIsReadAfterASignal(t *testing.T) {
	OnEach(t, func(t *testing.T, newTable func(t *testing.T) (newStore func(self Process) *Store)) {
		newStore := newTable(t)
		ctx := context.Background()
		p, self := NewProcess(), NewProcess()
		holder, head := newStore(p), newStore(self)
		defer head.CloseListener()
		for name, signal := range map[string]bool{"signalled": true, "not signalled": false} {
			c := Claim{name, NewOwnerID(p)}
			g, err := holder.Acquire(ctx, AcquireRequest{Claim: c, Lease: time.Hour})
			require.NoError(t, err)
			require.NotZero(t, g.Token)
			defer holder.HoldEnded()
			_, err = head.Acquire(ctx, AcquireRequest{Claim: Claim{name, NewOwnerID(self)}, Lease: time.Hour, EnlistAs: self.Direct()})
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
			for range grants {
				defer head.HoldEnded()
			}
			require.Equal(t, signal, len(grants) == 1, name)
		}
	})
}

// Sessions that see what is not committed, and servers whose replicas execute the text of
// statements, hand nothing over without an UPDATE of the next holder.
func TestDirectHandoffNeedsSettings(t *testing.T) {
	OnEach(t, func(t *testing.T, newTable func(t *testing.T) (newStore func(self Process) *Store)) {
		newStore := newTable(t)
		ctx := context.Background()
		p, self := NewProcess(), NewProcess()
		holder, head := newStore(p), newStore(self)
		defer head.CloseListener()
		c := Claim{"x", NewOwnerID(p)}
		_, err := holder.Acquire(ctx, AcquireRequest{Claim: c, Lease: time.Hour})
		require.NoError(t, err)
		defer holder.HoldEnded()
		require.False(t, holder.logsStatements.Load())
		require.False(t, holder.dirtyReads.Load())
		_, err = head.Acquire(ctx, AcquireRequest{Claim: Claim{"x", NewOwnerID(self)}, Lease: time.Hour, EnlistAs: self.Direct()})
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
