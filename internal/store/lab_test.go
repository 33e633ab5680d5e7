package store

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLab(t *testing.T) {
	onEach(t, func(t *testing.T, stores func(n int) []*Store) {
		all := stores(3)
		a, b, w := all[0], all[1], all[2]
		for _, s := range all {
			granted(t, s, "warm", time.Minute)
			_, _, err := s.ForceUnlock(ctx, "warm")
			require.NoError(t, err)
		}
		req := func(s *Store, mode Mode) AcquireRequest {
			return AcquireRequest{Claim: Claim{"x", NewOwnerID(s.self)}, Mode: mode, Lease: time.Minute, MayClaim: true}
		}
		do := func(s *Store, r AcquireRequest) Grant {
			before := s.Statements()
			g, err := s.Acquire(ctx, r)
			t.Logf("%+v %v; %d statements", g, err, s.Statements()-before)
			require.NoError(t, err)
			return g
		}
		ga := do(a, req(a, Shared))
		gb := do(b, req(b, Shared))
		require.Equal(t, ga.Token, gb.Token)
		wr := req(w, Exclusive)
		g := do(w, wr)
		require.True(t, g.Claimed)
		wr.Claimed = true
		require.Zero(t, do(a, req(a, Shared)).Token)
		_, _, err := a.Release(ctx, ga.Claim)
		require.NoError(t, err)
		require.Zero(t, do(w, wr).Token)
		_, _, err = b.Release(ctx, gb.Claim)
		require.NoError(t, err)
		gw := do(w, wr)
		require.Greater(t, gw.Token, ga.Token)
		require.Zero(t, do(a, req(a, Shared)).Token)
		require.Zero(t, do(a, req(a, Exclusive)).Token)
		_, _, err = w.Release(ctx, gw.Claim)
		require.NoError(t, err)
		gw = do(w, req(w, Exclusive))
		_, _, err = w.Release(ctx, gw.Claim)
		require.NoError(t, err)
		ga = do(a, req(a, Shared))
		require.Greater(t, ga.Token, gw.Token)
		_, _, err = a.Release(ctx, ga.Claim)
		require.NoError(t, err)
		gb = do(b, req(b, Exclusive))
		to := req(b, Shared)
		before := b.Statements()
		gd, next, err := b.Downgrade(ctx, gb.Claim, to)
		t.Logf("%+v %v %v; %d statements", gd, next, err, b.Statements()-before)
		require.NoError(t, err)
		require.NotZero(t, gd.Token)
		ga = do(a, req(a, Shared))
		require.Equal(t, gd.Token, ga.Token)
		before = b.Statements()
		freed, next, err := w.ForceUnlock(ctx, "x")
		t.Logf("%+v %v %v; %d statements", freed, next, err, b.Statements()-before)
		require.NoError(t, err)
		require.Len(t, freed, 2)
		do(a, req(a, Shared))
	})
}
