package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

var holds = []clause{
	{"a renewal and an extension lengthen a lease, and never shorten it", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		x, y, z := p.take("x", time.Minute), p.take("y", time.Minute), p.take("z", time.Minute)
		n, _, err := p.Renew(ctx, []store.Claim{x, y}, long, 2, 0)
		require.NoError(t, err)
		require.Equal(t, 2, n)
		require.True(t, p.extend(z, long, 0))
		_, _, err = p.Renew(ctx, []store.Claim{y, z}, time.Second, 0, 0)
		require.NoError(t, err)
		require.True(t, p.extend(x, time.Second, 0))
		for _, name := range []string{"x", "y", "z"} {
			require.Greater(t, p.row(name).Lease, mostLong, name)
		}
	}},
	{"a repeated request does not shorten a lease", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		for name, change := range map[string]func(*store.AcquireRequest){
			"plain":     func(*store.AcquireRequest) {},
			"enlisting": func(b *store.AcquireRequest) { b.EnlistAs = p.self },
			"replacing": func(b *store.AcquireRequest) { b.Replaces = p.take(b.Name, long).Owner },
		} {
			b := store.AcquireRequest{Claim: p.claim(name), Lease: time.Minute}
			change(&b)
			require.NotZero(t, p.acquire(b).Token, name)
			require.True(t, p.extend(b.Claim, long, 0))
			require.NotZero(t, p.acquire(b).Token, name)
			require.Greater(t, p.row(name).Lease, mostLong, name)
		}
	}},
	{"only the owner's lease is extended", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", time.Minute)
		for _, wrong := range []store.Claim{other.claim("x"), other.claim("missing")} {
			n, _, err := other.Renew(ctx, []store.Claim{wrong}, long, 1, 0)
			require.NoError(t, err)
			require.Zero(t, n)
			require.False(t, other.extend(wrong, long, 0))
		}
		require.LessOrEqual(t, p.row("x").Lease, time.Minute)
		p.release(c)
		require.False(t, p.extend(c, long, 0))
		require.Negative(t, p.row("x").Lease)
	}},
	{"an expired row belongs to its owner until another takes it", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.takeExpired("x")
		require.Negative(t, p.row("x").Remaining)
		require.True(t, p.owns(c))
		require.True(t, p.extend(c, long, 0))
		other.refused("x")
	}},
	{"a row is released by its claim alone", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", long)
		for _, wrong := range []store.Claim{p.claim("x"), other.claim("x"), {Name: "missing", Owner: c.Owner}} {
			freed, next := p.release(wrong)
			require.False(t, freed)
			require.Zero(t, next)
			n, _, err := p.ReleaseAll(ctx, []store.Claim{wrong})
			require.NoError(t, err)
			require.Zero(t, n)
		}
		other.refused("x")
		freed, _ := other.release(c) // a claim names its owner, so any process may release it
		require.True(t, freed)
		require.False(t, p.owns(c))
		other.take("x", long)
	}},
	{"a release can be repeated until another has the row", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", long)
		other.waits("x")
		for range 2 {
			freed, next := p.release(c)
			require.True(t, freed)
			require.Equal(t, other.self, next)
			n, next, err := p.ReleaseAll(ctx, []store.Claim{c})
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.Equal(t, other.self, next)
		}
		taken := other.take("x", long)
		freed, _ := p.release(c)
		require.False(t, freed)
		require.True(t, other.owns(taken))
	}},
	{"many rows are released at once, and no others", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		mine := []store.Claim{p.take("a", long), p.take("b", long), p.take("c", long)}
		theirs := other.take("d", long)
		other.waits("b")
		all := append(mine, p.claim("d"), p.claim("missing"))
		for range 2 {
			n, next, err := p.ReleaseAll(ctx, all)
			require.NoError(t, err)
			require.EqualValues(t, len(mine), n)
			require.Equal(t, other.self, next)
		}
		owned, err := p.Owned(ctx, append(all, theirs))
		require.NoError(t, err)
		require.Equal(t, []store.Claim{theirs}, owned)
	}},
	{"a look reads what is left of the lease and of the session", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(30 * time.Minute)
		p.release(p.take("released", long))
		p.takeExpired("expired")
		p.take("held", time.Minute)
		p.takeKept("kept", id)
		p.takeBound("long", long, id)
		time.Sleep(time.Millisecond)
		rows, _, err := other.Look(ctx, []string{"released", "expired", "held", "kept", "long", "missing"})
		require.NoError(t, err)
		require.Len(t, rows, 5)
		for name, want := range map[string]struct{ lease, remaining time.Duration }{ // at most, 0 if none is left
			"released": {0, 0},
			"expired":  {0, 0},
			"held":     {time.Minute, time.Minute},
			"kept":     {0, 30 * time.Minute},
			"long":     {long, long},
		} {
			requireLeft(t, want.lease, rows[name].Lease, name)
			requireLeft(t, want.remaining, rows[name].Remaining, name)
		}
		require.NotEmpty(t, rows["expired"].Owner)
		require.Equal(t, store.Row{}, rows["missing"])
	}},
	{"a refusal has what is left of the lease, then of the session", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		p.takeBound("held", time.Minute, id)
		p.takeKept("kept", id)
		time.Sleep(time.Millisecond)
		for _, enlistAs := range []store.Process{0, other.self} {
			_, g := other.try("held", long, enlistAs)
			requireLeft(t, time.Minute, g.Remaining, "held")
			_, g = other.try("kept", long, enlistAs)
			requireLeft(t, long, g.Remaining, "kept")
			require.False(t, g.Reserved)
		}
	}},
}

// requireLeft requires that at most want is left of a lease, and not much less; nothing if want
// is 0.
func requireLeft(t *testing.T, want, left time.Duration, name string) {
	t.Helper()
	if want == 0 {
		require.LessOrEqual(t, left, want, name)
		return
	}
	require.LessOrEqual(t, left, want, name)
	require.Greater(t, left, want-testTimeout, name)
}
