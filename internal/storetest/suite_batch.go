package storetest

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

var batches = []clause{
	{"a batch takes all names, with and without rows, with one token", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		var earlier []uint64
		for _, n := range []int{1, 2, 100, store.BatchSize} {
			names := numbered(n)
			for i := 0; i < n; i += 2 {
				c, g := p.try(names[i], long, 0)
				p.release(c)
				earlier = append(earlier, g.Token)
			}
			req, g := p.tryAll(names, long)
			require.Equal(t, n, g.Granted)
			require.GreaterOrEqual(t, g.Token, slices.Max(earlier)+store.TokenRange)
			earlier = append(earlier, g.Token)
			for _, name := range []string{names[0], names[n-1]} {
				r := p.row(name)
				require.Equal(t, req.Owner, r.Owner)
				require.Greater(t, r.Lease, mostLong)
			}
			owned, err := p.Owned(ctx, req.Claims(n))
			require.NoError(t, err)
			require.Len(t, owned, n)
			freed, _, err := p.ReleaseAll(ctx, req.Claims(n))
			require.NoError(t, err)
			require.EqualValues(t, n, freed)
		}
		c, g := p.try(numbered(1)[0], long, 0)
		require.GreaterOrEqual(t, g.Token, slices.Max(earlier)+store.TokenRange)
		require.True(t, p.owns(c))
	}},
	{"a statement for many claims finds no row of a claim of another row", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		req, _ := p.tryAll([]string{"a", "b"}, long)
		claims := req.Claims(2)
		stale := []store.Claim{claims[0], {Name: "b", Owner: store.NewOwnerID(p.self)}}
		owned, _, err := p.Renew(ctx, stale, 2*long, 1, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, owned)
		freed, _, err := p.ReleaseAll(ctx, stale)
		require.NoError(t, err)
		require.EqualValues(t, 1, freed)
		require.False(t, p.owns(claims[0]))
		require.True(t, p.owns(claims[1]))
	}},
	{"a batch takes the names before the first that is not free", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := other.begin(long)
		for name, occupy := range map[string]func(name string){
			"held":        func(name string) { other.take(name, long) },
			"kept":        func(name string) { other.takeKept(name, id) },
			"waited for":  func(name string) { c := p.take(name, long); other.waits(name); p.release(c) },
			"held shared": func(name string) { other.release(other.share(name, long).Claim) },
			"own, waited": func(name string) { c := other.take(name, long); p.waits(name); other.release(c) },
		} {
			names := []string{"a " + name, "b " + name, "c " + name, "d " + name}
			p.release(p.take(names[0], long))
			occupy(names[2])
			before := p.row(names[2])
			req, g := p.tryAll(names, long)
			require.Equal(t, 2, g.Granted, name)
			require.NotZero(t, g.Token)
			require.Empty(t, g.Unwanted)
			require.Equal(t, before.Owner, p.row(names[2]).Owner)
			require.Equal(t, before.Next, p.row(names[2]).Next)
			for _, c := range req.Claims(2) {
				require.True(t, p.owns(c))
			}
			other.take(names[3], long)
			_, g = p.tryAll(names[2:], long)
			require.Zero(t, g.Granted)
			require.Zero(t, g.Token)
		}
	}},
	{"a batch takes names whose lease has ended, and whose session is known to be dead", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := other.begin(short)
		names := []string{"a", "b", "c"}
		other.takeExpired("a")
		other.takeKept("b", id)
		other.takeKept("c", id)
		p.takeWhenFree("b", time.Microsecond, nil) // finds the session dead
		time.Sleep(time.Millisecond)
		req, g := p.tryAll(names, long)
		require.Equal(t, 3, g.Granted)
		require.False(t, p.extend(store.Claim{Name: "c", Owner: "x"}, long, 0))
		for _, c := range req.Claims(3) {
			require.True(t, p.owns(c))
		}
		require.Empty(t, other.bound(id))
	}},
	{"names of a batch are compared byte by byte", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		names := []string{"a", "A", "a ", "ä", "a\u0308", "ß", "ss", "'\"\\", "\\u0041", "{t}"}
		slices.Sort(names)
		for range 2 { // first without rows
			req, g := p.tryAll(names, long)
			require.Equal(t, len(names), g.Granted)
			for _, name := range names {
				require.Equal(t, req.Owner, p.row(name).Owner, name)
			}
			p.ReleaseAll(ctx, req.Claims(len(names)))
		}
	}},
	{"of concurrent batches and requests, one is granted each name", func(t *testing.T, newProcess func() *process) {
		processes := []*process{newProcess(), newProcess(), newProcess()}
		for round := range 5 { // first without rows
			var mu sync.Mutex // protects granted
			granted := map[string]int{}
			var wg sync.WaitGroup
			for i := range 9 {
				wg.Go(func() {
					p, names := processes[i%3], numbered(20)[i:]
					count := func(names []string) {
						mu.Lock()
						defer mu.Unlock()
						for _, name := range names {
							granted[name]++
						}
					}
					if i == 8 {
						if _, g := p.try(names[0], long, 0); g.Token > 0 {
							count(names[:1])
						}
						return
					}
					req, g := p.tryAll(names, long)
					count(names[:g.Granted])
					owned, err := p.Owned(ctx, req.Claims(len(names)))
					require.NoError(t, err)
					require.ElementsMatch(t, append(req.Claims(g.Granted), g.Unwanted...), owned)
					p.ReleaseAll(ctx, g.Unwanted)
				})
			}
			wg.Wait()
			for name, n := range granted {
				require.Equal(t, 1, n, "%s, round %d", name, round)
			}
			require.NotEmpty(t, granted)
			for name := range granted {
				processes[0].force(name)
			}
		}
	}},
}

func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("%04d", i))
	}
	return names
}

// tryAll requests a batch with an owner of its own, again after a deadlock.
func (p *process) tryAll(names []string, lease time.Duration) (store.BatchRequest, store.BatchGrant) {
	p.t.Helper()
	req := store.BatchRequest{Names: names, Owner: store.NewOwnerID(p.self), Lease: lease}
	for start := time.Now(); ; {
		g, err := p.AcquireAll(ctx, req)
		if store.Contended(err) && time.Since(start) < testTimeout {
			continue
		}
		require.NoError(p.t, err)
		for range g.Granted {
			p.t.Cleanup(p.HoldEnded)
		}
		return req, g
	}
}
