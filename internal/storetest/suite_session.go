package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

var sessions = []clause{
	{"a session keeps the rows that are bound to it, and no others", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		bound, extended := p.takeExpired("bound"), p.takeKept("extended", id)
		n, _, err := p.Renew(ctx, []store.Claim{bound}, time.Microsecond, 0, id)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.ElementsMatch(t, []store.Claim{bound, extended}, p.bound(id))
		p.takeExpired("unbound")
		other.take("unbound", long)
		for range 2 {
			require.Greater(t, other.refused("bound").Remaining, mostLong)
			require.Greater(t, other.refused("extended").Remaining, mostLong)
			other.waits("bound")
		}
		freed, next := p.release(bound)
		require.True(t, freed)
		require.Equal(t, other.self, next)
		require.Equal(t, []store.Claim{extended}, p.bound(id))
		other.take("bound", long)
	}},
	{"a renewed session lives on", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(testTimeout)
		p.takeKept("x", id)
		for _, lease := range []time.Duration{long, time.Second} { // the second does not shorten it
			r, err := p.RenewSession(ctx, id, lease)
			require.NoError(t, err)
			require.False(t, r.Forced)
			require.False(t, r.Moved)
			require.NotZero(t, r.Sent)
			require.Greater(t, other.row("x").Remaining, mostLong)
		}
	}},
	{"a repeated begin does not shorten the session", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		id := p.begin(long)
		p.takeKept("x", id)
		require.Equal(t, id, p.begin(time.Second))
		require.Greater(t, p.row("x").Remaining, mostLong)
	}},
	{"a session that did not begin cannot be renewed", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		_, err := p.RenewSession(ctx, p.self.FirstSession(), long)
		require.ErrorIs(t, err, store.ErrSessionDead)
		require.NoError(t, p.EndSession(ctx, p.self.FirstSession()))
	}},
	{"an expired session stays dead", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		id := p.begin(short)
		time.Sleep(short + 10*time.Millisecond)
		requireDead(t, p, id)
	}},
	{"an ended session stays dead, and frees its rows", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		p.takeKept("x", id)
		other.refused("x")
		require.NoError(t, p.EndSession(ctx, id))
		requireDead(t, p, id)
		require.Negative(t, other.row("x").Remaining)
		newProcess().take("x", long) // other, which saw the session alive, may refuse for as long as it had left
	}},
	{"a later session replaces an earlier one for good", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		p.takeKept("x", id)
		_, err := p.BeginSession(ctx, id+1, long)
		require.NoError(t, err)
		requireDead(t, p, id)
		require.NoError(t, p.EndSession(ctx, id))
		_, err = p.RenewSession(ctx, id+1, long)
		require.NoError(t, err)
		other.take("x", long)
	}},
	{"a row of a dead session is taken over for good", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		start := time.Now()
		id := p.begin(2 * short)
		var claims []store.Claim
		for _, name := range []string{"x", "y", "z"} {
			claims = append(claims, p.takeKept(name, id))
		}
		other.takeWhenFree("x", long, nil)
		requireSince(t, start, 2*short)
		other.take("y", long)
		_, g := other.try("z", long, other.self)
		require.NotZero(t, g.Token)
		require.Empty(t, p.bound(id))
		for _, c := range claims {
			require.False(t, p.extend(c, long, id))
			freed, _ := p.release(c)
			require.False(t, freed)
		}
		requireDead(t, p, id)
	}},
	{"a lease outlives a dead session", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		p.takeBound("x", long, id)
		require.NoError(t, p.EndSession(ctx, id))
		require.Greater(t, other.refused("x").Remaining, mostLong)
	}},
	{"a row is bound to later sessions only", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		id := p.self.FirstSession()
		c := p.take("x", long)
		for _, session := range []store.SessionID{id, id + 1, id, 0} {
			_, err := p.BeginSession(ctx, max(id, session), long)
			if session == id+1 {
				require.NoError(t, err)
			}
			require.True(t, p.extend(c, long, session))
			_, _, err = p.Renew(ctx, []store.Claim{c}, long, 0, session)
			require.NoError(t, err)
		}
		require.Empty(t, p.bound(id))
		require.Equal(t, []store.Claim{c}, p.bound(id+1))
	}},
}

// requireDead requires that a session can be neither renewed nor begun again.
func requireDead(t *testing.T, p *process, id store.SessionID) {
	t.Helper()
	_, err := p.RenewSession(ctx, id, long)
	require.ErrorIs(t, err, store.ErrSessionDead)
	_, err = p.BeginSession(ctx, id, long)
	require.ErrorIs(t, err, store.ErrSessionDead)
	_, err = p.RenewSession(ctx, id, long)
	require.ErrorIs(t, err, store.ErrSessionDead, "the begin did not revive it")
}
