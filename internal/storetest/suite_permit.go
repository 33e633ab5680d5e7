package storetest

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

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

var permits = []clause{
	{"a semaphore grants as many permits as its limit, each another slot", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		slots := map[int]bool{}
		for i, q := range []*process{p, other, p} {
			g := q.takePermit("x", 3, long-time.Duration(i)*time.Minute)
			require.Equal(t, store.QueueName(store.Permit, "x"), store.QueueOf(g.Claim.Name))
			require.True(t, other.owns(g.Claim))
			slots[store.SlotOf(g.Claim.Name)] = true
		}
		require.Equal(t, map[int]bool{1: true, 2: true, 3: true}, slots)
		for _, enlistAs := range []store.Process{0, p.self} {
			g := p.tryPermit("x", 3, long, enlistAs)
			require.Zero(t, g.Token)
			require.False(t, g.Reserved)
			require.False(t, g.Locked)
			require.LessOrEqual(t, g.Remaining, long-2*time.Minute)
		}
		require.Greater(t, p.tryPermit("x", 3, long, 0).Remaining, mostLong)
		p.take("x", long) // a lock of that name is another
		p.takePermit("y", 1, long)
	}},
	{"a permit is extended, kept by a session and released like a lock", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		g := p.takePermit("x", 1, time.Minute)
		require.True(t, p.extend(g.Claim, 2*time.Minute, 0))
		require.Greater(t, p.row(g.Claim.Name).Lease, time.Minute)
		require.True(t, p.extend(g.Claim, time.Minute, id))
		require.Equal(t, []store.Claim{g.Claim}, p.bound(id))
		require.Greater(t, p.row(g.Claim.Name).Remaining, mostLong)
		freed, next := p.release(g.Claim)
		require.True(t, freed)
		require.Zero(t, next)
		again := other.takePermit("x", 1, long)
		require.GreaterOrEqual(t, again.Token, g.Token+store.TokenRange)
		require.False(t, p.owns(g.Claim))
	}},
	{"a permit that has expired, or whose session is dead, is taken over", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		kept := p.takePermit("x", 2, time.Microsecond)
		require.True(t, p.extend(kept.Claim, time.Microsecond, id))
		expired := p.takePermit("x", 2, time.Microsecond)
		time.Sleep(time.Millisecond)
		taken := other.takePermit("x", 2, long)
		require.Equal(t, expired.Claim.Name, taken.Claim.Name)
		require.Greater(t, other.tryPermit("x", 2, long, 0).Remaining, mostLong)
		require.NoError(t, p.EndSession(ctx, id))
		taken = other.takePermit("x", 2, long)
		require.Equal(t, kept.Claim.Name, taken.Claim.Name)
		require.Greater(t, taken.Token, kept.Token)
		require.Empty(t, p.bound(id))
	}},
	{"no process gets a permit while as many as its own limit are held", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		var all []store.Grant
		for range 5 {
			all = append(all, p.takePermit("x", 5, long))
		}
		slices.SortFunc(all, func(a, b store.Grant) int { return cmp.Compare(a.Claim.Name, b.Claim.Name) })
		for i, g := range all[:4] { // slot 5 stays
			require.Zero(t, other.tryPermit("x", 2, long, 0).Token, i)
			p.release(g.Claim)
		}
		g := other.takePermit("x", 2, long)
		require.LessOrEqual(t, store.SlotOf(g.Claim.Name), 2)
		require.Zero(t, other.tryPermit("x", 2, long, 0).Token)
		p.takePermit("x", 5, long)
	}},
	{"processes wait for permits in the order in which they joined", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		held := []store.Grant{p.takePermit("x", 2, long), p.takePermit("x", 2, long)}
		var waiters []*process
		for _, id := range []func(store.Process) store.Process{listening, store.Process.Polling, listening} {
			waiter := newProcess()
			for range 2 {
				require.Zero(t, waiter.tryPermit("x", 2, long, id(waiter.self)).Token)
			}
			waiters = append(waiters, waiter)
		}
		queue := p.row("x\x00s")
		require.Equal(t, waiters[0].self, queue.Next)
		require.False(t, queue.Listed)
		require.True(t, waiters[1].row("x\x00s").Listed)
		for i, waiter := range waiters {
			_, next := p.release(held[i].Claim)
			require.Contains(t, []store.Process{waiter.self, waiter.self.Polling()}, next)
			require.True(t, p.tryPermit("x", 2, long, 0).Reserved)
			for _, later := range waiters[i+1:] {
				require.True(t, later.tryPermit("x", 2, long, later.self).Reserved)
			}
			g := waiter.takePermit("x", 2, long)
			require.Zero(t, g.Next, "no other slot is free")
			require.False(t, waiter.row("x\x00s").Listed)
			held = append(held, g)
		}
		_, next := p.release(held[3].Claim)
		require.Zero(t, next)
	}},
	{"a grant answers the next process while another slot is free", func(t *testing.T, newProcess func() *process) {
		p, head, second, third := newProcess(), newProcess(), newProcess(), newProcess()
		held := []store.Grant{p.takePermit("x", 2, long), p.takePermit("x", 2, long)}
		for _, waiter := range []*process{head, second, third} {
			require.Zero(t, waiter.tryPermit("x", 2, long, waiter.self).Token)
		}
		for _, g := range held {
			_, next := p.release(g.Claim)
			require.Equal(t, head.self, next)
		}
		require.Equal(t, second.self, head.takePermit("x", 2, long).Next)
		require.Zero(t, second.takePermit("x", 2, long).Next)
		require.Equal(t, third.self, p.row("x\x00s").Next)
	}},
	{"a forced release of a permit answers the head of its wait queue", func(t *testing.T, newProcess func() *process) {
		p, waiter := newProcess(), newProcess()
		held := p.takePermit("x", 1, long)
		require.Zero(t, waiter.tryPermit("x", 1, long, waiter.self).Token)
		freed, next, err := newProcess().ForceUnlock(ctx, held.Claim.Name)
		require.NoError(t, err)
		require.Equal(t, []store.Claim{held.Claim}, freed)
		require.Equal(t, waiter.self, next)
	}},
	{"a released slot is reserved for the head of the wait queue", func(t *testing.T, newProcess func() *process) {
		for name, window := range map[string]time.Duration{"listening": store.ReservedFor, "polling": reservedForPolling} {
			p, head, second, other := newProcess(), newProcess(), newProcess(), newProcess()
			held := p.takePermit(name, 1, long)
			id := head.self
			if window == reservedForPolling {
				id = id.Polling()
			}
			require.Zero(t, head.tryPermit(name, 1, long, id).Token)
			require.Zero(t, second.tryPermit(name, 1, long, second.self).Token)
			start := time.Now()
			p.release(held.Claim)
			for g := other.tryPermit(name, 1, long, 0); g.Token == 0; g = other.tryPermit(name, 1, long, 0) {
				require.True(t, g.Reserved)
				require.Less(t, time.Since(start), testTimeout)
				time.Sleep(10 * time.Millisecond)
			}
			requireSince(t, start, window)
			require.Equal(t, second.self, p.row(name+"\x00s").Next, "the head did not take it in time")
		}
	}},
	{"a removed waiter for a permit returns the next one", func(t *testing.T, newProcess func() *process) {
		p, head, second := newProcess(), newProcess(), newProcess()
		p.takePermit("x", 1, long)
		for _, waiter := range []*process{head, second} {
			require.Zero(t, waiter.tryPermit("x", 1, long, waiter.self).Token)
		}
		next, all, err := p.RemoveWaiter(ctx, []string{"x\x00s"}, head.self)
		require.NoError(t, err)
		require.True(t, all)
		require.Equal(t, second.self, next)
	}},
	{"a look and a listener see what a waiter for a permit needs", func(t *testing.T, newProcess func() *process) {
		p, head, other := newProcess(), newProcess(), newProcess()
		held := []store.Grant{p.takePermit("x", 2, long), p.takePermit("x", 2, long)}
		listen := func(p *process) store.Wakeup {
			w, err := p.Listen(ctx, []string{"x\x00s"}, 10*time.Millisecond)
			require.NoError(t, err)
			return w
		}
		require.Equal(t, store.Wakeup{Missing: true}, listen(head))
		require.Zero(t, head.tryPermit("x", 2, long, head.self).Token)
		require.Equal(t, store.Wakeup{Name: "x\x00s"}, listen(other), "it is not listed")
		require.Zero(t, other.tryPermit("x", 2, long, other.self).Token)
		for _, waiter := range []*process{head, other} {
			require.Zero(t, listen(waiter))
			row := waiter.row("x\x00s")
			require.Zero(t, row.Remaining)
			require.Equal(t, head.self, row.Next)
			require.True(t, row.Waiting)
		}
		start := time.Now()
		p.release(held[0].Claim)
		require.Equal(t, store.Wakeup{Name: "x\x00s"}, listen(head))
		for listen(other) == (store.Wakeup{}) {
			require.Less(t, time.Since(start), testTimeout)
		}
		requireSince(t, start, store.ReservedFor)
		g := head.takePermit("x", 2, long)
		require.Zero(t, listen(other))
		head.release(g.Claim)
		require.Equal(t, store.Wakeup{Name: "x\x00s"}, listen(other), "it is the head by now")
	}},
	{"operators see each shared hold and each permit under the name that callers gave", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.take("a", long)
		for _, q := range []*process{p, other} {
			g := q.acquire(store.AcquireRequest{Claim: q.claim("b"), Mode: store.Shared, Lease: long})
			require.NotZero(t, g.Token)
		}
		waiting := p.acquire(store.AcquireRequest{Claim: p.claim("b"), Lease: long, MayClaim: true, EnlistAs: p.self})
		require.True(t, waiting.Claimed)
		permits := []store.Grant{p.takePermit("b", 3, long), other.takePermit("b", 3, long), p.takePermit("b", 3, long)}
		require.Zero(t, other.tryPermit("b", 3, long, other.self).Token)
		p.release(permits[2].Claim)
		infos, err := other.List(ctx)
		require.NoError(t, err)
		require.Len(t, infos, 5)
		require.Equal(t, "a", infos[0].Name)
		require.False(t, infos[0].Shared)
		for i, info := range infos[1:] {
			require.Equal(t, "b", info.Name)
			require.True(t, info.Held)
			require.Equal(t, i < 2, info.Shared)
			require.Equal(t, i >= 2, info.Slot > 0)
			require.Equal(t, 1, info.Waiters)
			require.Equal(t, Label, info.Holder)
		}
		held, err := other.Permits(ctx, "b")
		require.NoError(t, err)
		require.Len(t, held, 2)
		require.Less(t, held[0].Slot, held[1].Slot)
		for _, info := range held {
			i := slices.IndexFunc(permits, func(g store.Grant) bool { return g.Claim.Owner == info.Owner })
			require.Equal(t, store.SlotOf(permits[i].Claim.Name), info.Slot)
			require.Equal(t, permits[i].Token, info.Token)
		}
		none, err := other.Permits(ctx, "a")
		require.NoError(t, err)
		require.Empty(t, none)
		b := other.inspect("b")
		require.True(t, b.Held && b.Shared)
		require.Empty(t, b.Owner)
		require.Equal(t, 2, b.Holds)
		require.Len(t, b.Holders, 2)
		require.Equal(t, b.Token, b.Holders[0].Token)
		require.Empty(t, other.inspect("a").Holders)
	}},
	{"of concurrent requests, no more than the limit are granted", func(t *testing.T, newProcess func() *process) {
		processes := []*process{newProcess(), newProcess(), newProcess()}
		for range 3 { // first without rows
			var mu sync.Mutex // protects granted
			granted := map[string]store.Claim{}
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					if g := processes[i%len(processes)].tryPermit("x", 4, long, 0); g.Token > 0 {
						mu.Lock()
						defer mu.Unlock()
						granted[g.Claim.Name] = g.Claim
					}
				})
			}
			wg.Wait()
			for len(granted) < 4 { // all may have picked the same slot
				g := processes[0].takePermit("x", 4, long)
				require.NotContains(t, granted, g.Claim.Name)
				granted[g.Claim.Name] = g.Claim
			}
			require.Zero(t, processes[1].tryPermit("x", 4, long, 0).Token)
			n, _, err := processes[0].ReleaseAll(ctx, slices.Collect(maps.Values(granted)))
			require.NoError(t, err)
			require.EqualValues(t, 4, n)
		}
	}},
}

// tryPermit requests a permit.
func (p *process) tryPermit(name string, limit int, lease time.Duration, enlistAs store.Process) store.Grant {
	p.t.Helper()
	return p.acquire(store.AcquireRequest{
		Claim: p.claim(store.QueueName(store.Permit, name)), Mode: store.Permit, Limit: limit, Lease: lease, EnlistAs: enlistAs,
	})
}

// takePermit acquires a permit, which must be free.
func (p *process) takePermit(name string, limit int, lease time.Duration) store.Grant {
	p.t.Helper()
	g := p.tryPermit(name, limit, lease, 0)
	require.NotZero(p.t, g.Token, "%+v", g)
	require.NotZero(p.t, g.Sent)
	return g
}
