package storetest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

var grants = []clause{
	{"a name without a row is granted", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		rows, _, err := p.Look(ctx, []string{"x"})
		require.NoError(t, err)
		require.Empty(t, rows)
		c := p.take("x", long)
		r := p.row("x")
		require.Equal(t, c.Owner, r.Owner)
		require.Greater(t, r.Lease, mostLong)
		require.LessOrEqual(t, r.Lease, long)
	}},
	{"a held row is refused, with what is left of the lease", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", long)
		for _, enlistAs := range []store.Process{0, other.self} {
			_, g := other.try("x", long, enlistAs)
			require.Zero(t, g.Token)
			require.Greater(t, g.Remaining, mostLong)
			require.LessOrEqual(t, g.Remaining, long)
			require.False(t, g.Reserved)
		}
		p.refused("x")
		require.True(t, other.owns(c))
	}},
	{"a lease ends by the clock", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		start := time.Now()
		c := p.take("x", short)
		taken := other.takeWhenFree("x", long, func(g store.Grant) {
			require.Positive(t, g.Remaining)
			require.LessOrEqual(t, g.Remaining, short)
		})
		requireSince(t, start, short)
		require.False(t, p.owns(c))
		require.True(t, p.owns(taken))
	}},
	{"of concurrent requests, one is granted", func(t *testing.T, newProcess func() *process) {
		processes := []*process{newProcess(), newProcess(), newProcess()}
		for range 3 { // first without a row
			var mu sync.Mutex // protects granted
			var granted []store.Claim
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					p := processes[i%len(processes)]
					if c, g := p.try("x", long, 0); g.Token > 0 {
						mu.Lock()
						defer mu.Unlock()
						granted = append(granted, c)
					}
				})
			}
			wg.Wait()
			require.Len(t, granted, 1)
			require.True(t, processes[0].owns(granted[0]))
			freed, _ := processes[0].release(granted[0])
			require.True(t, freed)
		}
	}},
	{"of a crowd of requests, some of whose calls end, one at a time is granted each name", func(t *testing.T, newProcess func() *process) {
		processes := []*process{newProcess(), newProcess()}
		names := numbered(12)
		var holders [12]atomic.Int32
		var mu sync.Mutex // protects unknown
		var unknown []store.Claim
		var wg sync.WaitGroup
		for i := range 24 {
			p := processes[i%2]
			wg.Go(func() {
				for range 15 {
					n := rand.N(len(names))
					limited, cancel := context.WithTimeout(ctx, 100*time.Microsecond<<rand.N(16))
					c := p.claim(names[n])
					g, err := p.Acquire(limited, store.AcquireRequest{Claim: c, Lease: long})
					cancel()
					switch {
					case err != nil && store.OutcomeUnknown(err):
						mu.Lock()
						unknown = append(unknown, c)
						mu.Unlock()
					case err == nil && g.Token > 0:
						assert.EqualValues(t, 1, holders[n].Add(1))
						assert.Equal(t, c, g.Claim)
						holders[n].Add(-1)
						p.releaseBesideOthers(c)
						p.HoldEnded()
					}
				}
			})
		}
		wg.Wait()
		p := processes[0]
		for start := time.Now(); ; time.Sleep(10 * time.Millisecond) { // a cancelled statement may yet be granted
			for part := range slices.Chunk(unknown, 100) {
				_, _, err := p.ReleaseAll(ctx, part)
				require.NoError(t, err)
			}
			if time.Since(start) > time.Second {
				break
			}
		}
		for _, name := range names {
			p.take(name, long)
		}
	}},
	{"tokens rise by the range of a grant, and follow the clock", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		clock := time.Now().Add(-time.Millisecond).UnixMicro()
		c, g := p.try("x", long, 0)
		token := g.Token
		require.Greater(t, token, uint64(clock))
		rises := func(g store.Grant, ranges uint64) {
			t.Helper()
			require.GreaterOrEqual(t, g.Token, token+ranges*store.TokenRange)
			token = g.Token
		}
		p.release(c)
		_, g = other.try("x", long, 0)
		rises(g, 1)
		other.force("x")
		c, g = p.try("x", long, p.self)
		rises(g, 2) // a forced release changes the token, too
		replacing := store.AcquireRequest{Claim: p.claim("x"), Lease: time.Microsecond, Replaces: c.Owner}
		rises(p.acquire(replacing), 1)
		time.Sleep(time.Millisecond)
		_, g = other.try("x", long, 0)
		rises(g, 1)
	}},
	{"names are compared byte by byte", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		for _, name := range []string{"a", "A", "a ", "ä", "a\u0308", "ß", "ss", "\xff", "\x01", "a\x00"} {
			c := p.take(name, long)
			require.Equal(t, c.Owner, p.row(name).Owner, name)
		}
	}},
	{"a repeated request recognizes its grant, and leaves the row bound", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		id := p.begin(long)
		for name, change := range map[string]func(*store.AcquireRequest){
			"plain":     func(*store.AcquireRequest) {},
			"enlisting": func(b *store.AcquireRequest) { b.EnlistAs = p.self },
			"replacing": func(b *store.AcquireRequest) { b.Replaces = p.take(b.Name, long).Owner },
		} {
			b := store.AcquireRequest{Claim: p.claim(name), Lease: long}
			change(&b)
			first := p.acquire(b)
			require.NotZero(t, first.Token, name)
			require.GreaterOrEqual(t, p.acquire(b).Token, first.Token, name)
			require.True(t, p.extend(b.Claim, long, id))
			require.GreaterOrEqual(t, p.acquire(b).Token, first.Token, name)
			require.Contains(t, p.bound(id), b.Claim, name)
			require.False(t, p.row(name).Listed, name)
		}
	}},
	{"a request that replaces takes over from that owner alone", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		first := p.acquire(store.AcquireRequest{Claim: p.claim("x"), Lease: long})
		c := first.Claim
		other.waits("x")
		wrong := store.AcquireRequest{Claim: p.claim("x"), Lease: long, Replaces: p.claim("x").Owner}
		require.Equal(t, store.Grant{}, sentAside(p.acquire(wrong)))
		missing := store.AcquireRequest{Claim: p.claim("missing"), Lease: long, Replaces: c.Owner}
		require.Equal(t, store.Grant{}, sentAside(p.acquire(missing)))
		require.True(t, p.owns(c))

		wrong = store.AcquireRequest{Claim: p.claim("x"), Lease: long, Replaces: c.Owner, Replaced: first.Token + 1}
		require.Equal(t, store.Grant{}, sentAside(p.acquire(wrong)))

		right := store.AcquireRequest{Claim: p.claim("x"), Lease: long, Replaces: c.Owner, Replaced: first.Token}
		require.NotZero(t, p.acquire(right).Token)
		require.True(t, p.owns(right.Claim))
		require.False(t, p.extend(c, long, 0))
		freed, _ := p.release(c)
		require.False(t, freed)
		_, next := p.release(right.Claim)
		require.Equal(t, other.self, next, "the wait queue stays")
	}},
	{"a new owner is bound to no session", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		id := p.begin(long)
		c := p.takeBound("x", long, id)
		require.NotZero(t, p.acquire(store.AcquireRequest{Claim: p.claim("x"), Lease: long, Replaces: c.Owner}).Token)
		require.Empty(t, p.bound(id))
	}},
	{"a probe finds another holder", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		probe := func(c store.Claim) store.RowState {
			state, err := other.Probe(ctx, c)
			require.NoError(t, err)
			return state
		}
		require.Equal(t, store.RowFree, probe(other.claim("x")), "missing, and no first grant waits")
		c := p.take("x", long)
		require.Equal(t, store.RowHeld, probe(other.claim("x")))
		require.Equal(t, store.RowFree, probe(c), "its own")
		p.release(c)
		require.Equal(t, store.RowFree, probe(other.claim("x")))
		p.takeKept("x", p.begin(long))
		require.Equal(t, store.RowHeld, probe(other.claim("x")), "kept by a session")
	}},
}

// sentAside returns a grant without the time at which its request was sent.
func sentAside(g store.Grant) store.Grant {
	g.Sent = time.Time{}
	return g
}
