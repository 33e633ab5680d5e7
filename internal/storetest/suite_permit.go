package storetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

// parts are clauses about rows that are part of a name: shared holds and permits. They write
// the keys of rows as package store defines them.
var parts = []clause{
	{"a released part answers the head of its name's wait queue", func(t *testing.T, newProcess func() *process) {
		p, head, other := newProcess(), newProcess(), newProcess()
		for _, queue := range []string{"x", "y\x00s"} {
			p.take(queue, long)
			_, g := head.try(queue, long, head.self.Polling())
			require.Zero(t, g.Token)
			other.waits(queue)
		}
		for _, key := range []string{"x\x00r" + p.self.String() + "00", "y\x00s00002"} {
			c := p.take(key, long)
			for range 2 { // it can be repeated
				freed, next := p.release(c)
				require.True(t, freed)
				require.Equal(t, head.self.Polling(), next)
				n, next, err := p.ReleaseAll(ctx, []store.Claim{p.claim("missing"), c})
				require.NoError(t, err)
				require.EqualValues(t, 1, n)
				require.Equal(t, head.self.Polling(), next)
			}
			taken := other.take(key, long)
			freed, next := p.release(c)
			require.False(t, freed)
			require.Zero(t, next)
			require.True(t, other.owns(taken))
		}
	}},
	{"a released part answers nobody if its name has no wait queue", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.take("x", long)
		p.take("w", long)
		other.waits("w")
		for _, key := range []string{"x\x00r" + p.self.String() + "00", "y\x00s00001", "w\x00s00001"} {
			freed, next := p.release(p.take(key, long))
			require.True(t, freed)
			require.Zero(t, next, "%q", key)
			n, next, err := p.ReleaseAll(ctx, []store.Claim{p.take(key, long)})
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.Zero(t, next, "%q", key)
		}
	}},
	{"parts and locks are released at once", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.take("y\x00s", long)
		other.waits("y\x00s")
		n, next, err := p.ReleaseAll(ctx, []store.Claim{p.take("x", long), p.take("y\x00s00001", long), p.take("y\x00s00002", long)})
		require.NoError(t, err)
		require.EqualValues(t, 3, n)
		require.Equal(t, other.self, next)
	}},
}
