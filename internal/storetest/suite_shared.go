package storetest

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

var sharedHolds = []clause{
	{"processes hold a name shared, with equal tokens", func(t *testing.T, newProcess func() *process) {
		p, other, third := newProcess(), newProcess(), newProcess()
		a := p.share("x", long)
		require.Equal(t, a.Token, other.share("x", long).Token)
		p.release(a.Claim)
		require.Equal(t, a.Token, third.share("x", long).Token, "one of them still holds it")
		require.Equal(t, a.Token, p.share("x", long).Token)
	}},
	{"operators, and who attaches it, see the token of a shared hold", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		g := p.share("x", long)
		holders := other.inspect("x").Holders
		require.Len(t, holders, 1)
		require.Equal(t, g.Token, holders[0].Token)
		ticket := store.NewTicketID(p.self)
		require.True(t, p.detach(g.Claim, ticket, long))
		req := store.AttachRequest{Claim: store.Claim{Name: g.Claim.Name, Owner: other.claim("x").Owner}, Ticket: ticket, Lease: long}
		require.Equal(t, g.Token, other.attach(req).Token)
	}},
	{"a shared hold has a row of its own, and its own lease", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		a, b := p.share("x", long), other.share("x", time.Minute)
		for _, g := range []store.Grant{a, b} {
			require.Equal(t, store.Shared, store.ModeOf(g.Claim.Name))
			require.Equal(t, "x", store.NameOf(g.Claim.Name))
			require.Equal(t, g.Claim.Owner, p.row(g.Claim.Name).Owner)
		}
		require.Greater(t, p.row(a.Claim.Name).Lease, mostLong)
		require.LessOrEqual(t, p.row(b.Claim.Name).Lease, time.Minute)
		require.True(t, other.extend(b.Claim, long, 0))
		require.Greater(t, p.row(b.Claim.Name).Lease, mostLong)
		p.release(a.Claim)
		require.True(t, other.owns(b.Claim))
		require.LessOrEqual(t, p.row("x").Remaining, time.Duration(0), "nobody holds it exclusively")
	}},
	{"two shared holds of one process have a row each", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		a, b := p.share("x", long), p.share("x", long)
		require.NotEqual(t, a.Claim.Name, b.Claim.Name)
		require.True(t, p.owns(a.Claim))
		require.True(t, p.owns(b.Claim))
		require.True(t, p.extend(a.Claim, long, p.begin(long)))
		p.release(a.Claim)
		require.Equal(t, a.Claim.Name, p.share("x", long).Claim.Name, "a row is used again")
	}},
	{"the longest name can be held shared", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		name := strings.Repeat("ä", 127) + "x"
		g := p.share(name, long)
		other.share(name, long)
		other.heldShared(name)
		p.release(g.Claim)
	}},
	{"a name that is held exclusively is refused to shared requests", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", long)
		g := other.shareRefused("x", 0)
		require.Greater(t, g.Remaining, mostLong)
		require.Equal(t, store.Grant{Remaining: g.Remaining}, sentAside(g))
		other.shareRefused("x", other.self)
		require.Equal(t, other.self, p.row("x").Next)
		_, next := p.release(c)
		require.Equal(t, other.self, next)
		other.share("x", long)
		require.Zero(t, p.row("x").Next)

		id := p.begin(long)
		p.takeKept("y", id)
		require.Greater(t, other.shareRefused("y", 0).Remaining, mostLong, "kept by a session")
	}},
	{"a shared request ends an exclusive hold that has expired for good", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.takeExpired("x")
		other.share("x", long)
		require.False(t, p.extend(c, long, 0))
		require.False(t, p.owns(c))
		freed, _ := p.release(c)
		require.False(t, freed)

		id := p.begin(long)
		c = p.takeKept("y", id)
		require.NoError(t, p.EndSession(ctx, id))
		newProcess().share("y", long)
		require.Empty(t, p.bound(id))
		require.False(t, p.extend(c, long, id))
	}},
	{"tokens rise from exclusive to shared to exclusive holds", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		var last uint64
		for range 3 {
			c, g := p.try("x", long, 0)
			require.GreaterOrEqual(t, g.Token, last+store.TokenRange)
			last = g.Token
			p.release(c)
			a, b := p.share("x", long), other.share("x", long)
			require.GreaterOrEqual(t, a.Token, last+store.TokenRange)
			require.Equal(t, a.Token, b.Token)
			last = a.Token
			p.release(a.Claim)
			other.release(b.Claim)
		}
	}},
	{"a repeated shared request recognizes its grant", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		b := store.AcquireRequest{Claim: p.claim("x"), Mode: store.Shared, Lease: long}
		first := p.acquire(b)
		require.NotZero(t, first.Token)
		require.Equal(t, sentAside(first), sentAside(p.acquire(b)))
		id := p.begin(long)
		require.True(t, p.extend(first.Claim, long, id))
		b.Lease, b.EnlistAs = time.Second, p.self
		require.Equal(t, sentAside(first), sentAside(p.acquire(b)))
		require.Greater(t, p.row(first.Claim.Name).Lease, mostLong)
		require.Equal(t, []store.Claim{first.Claim}, p.bound(id))
		require.Zero(t, p.row("x").Next)
		require.Equal(t, first.Token, other.share("x", long).Token)

		// Another process, for which the name is reserved by now, does not matter.
		c := other.take("y", long)
		b = store.AcquireRequest{Claim: p.claim("y"), Mode: store.Shared, Lease: long, EnlistAs: p.self}
		require.Zero(t, p.acquire(b).Token)
		next := newProcess()
		next.shareRefused("y", next.self.Polling())
		other.release(c)
		first = p.acquire(b)
		require.NotZero(t, first.Token)
		require.Equal(t, sentAside(first), sentAside(p.acquire(b)))
	}},
	{"of concurrent requests of both modes, those granted exclude each other", func(t *testing.T, newProcess func() *process) {
		processes := []*process{newProcess(), newProcess(), newProcess()}
		for range 3 { // first without a row
			var mu sync.Mutex // protects following variables
			var exclusive int
			var granted []store.Claim
			var wg sync.WaitGroup
			for i := range 12 {
				wg.Go(func() {
					p := processes[i%len(processes)]
					b := store.AcquireRequest{Claim: p.claim("x"), Lease: long}
					if i%2 == 0 {
						b.Mode = store.Shared
					}
					g := p.acquire(b)
					mu.Lock()
					defer mu.Unlock()
					if g.Token > 0 {
						granted = append(granted, g.Claim)
						exclusive += i % 2
					}
				})
			}
			wg.Wait()
			require.NotEmpty(t, granted)
			if exclusive > 0 {
				require.Len(t, granted, 1)
			}
			for _, c := range granted {
				freed, _ := processes[0].release(c)
				require.True(t, freed)
			}
		}
	}},
}

var claims = []clause{
	{"a name that is held shared is claimed by an exclusive request, and refused to others", func(t *testing.T, newProcess func() *process) {
		p, writer, other := newProcess(), newProcess(), newProcess()
		a := p.share("x", long)
		b, g := writer.claims("x", writer.self)
		require.Equal(t, b.Claim, g.Claim)
		require.Positive(t, g.Remaining)
		require.LessOrEqual(t, g.Remaining, time.Second)
		for _, q := range []*process{p, other} {
			refused := q.shareRefused("x", 0)
			require.Positive(t, refused.Remaining)
			require.LessOrEqual(t, refused.Remaining, store.ClaimLease)
			_, g := q.tryClaim("x", 0)
			require.Zero(t, g.Token)
			require.False(t, g.Claimed)
		}
		require.True(t, p.extend(a.Claim, long, 0), "the shared hold goes on")
		b.Claimed = true
		require.True(t, writer.acquire(b).Claimed)
	}},
	{"a claimed name is granted when the last shared hold is released", func(t *testing.T, newProcess func() *process) {
		p, other, writer := newProcess(), newProcess(), newProcess()
		a, b := p.share("x", long), other.share("x", long)
		w, _ := writer.claims("x", writer.self)
		p.release(a.Claim)
		require.True(t, writer.acquire(w).Claimed)
		other.release(b.Claim)
		g := writer.acquire(w)
		require.GreaterOrEqual(t, g.Token, a.Token+store.TokenRange)
		require.Equal(t, w.Claim, g.Claim)
		require.True(t, writer.owns(g.Claim))
		require.Greater(t, p.row("x").Lease, mostLong)
		require.Zero(t, p.row("x").Next)
		p.shareRefused("x", 0)
		require.Greater(t, p.refused("x").Remaining, mostLong)
		writer.release(g.Claim)
		p.take("x", long)
	}},
	{"a claimed name is granted when the leases of the shared holds have ended, for good", func(t *testing.T, newProcess func() *process) {
		p, other, writer := newProcess(), newProcess(), newProcess()
		start := time.Now()
		a, b := p.share("x", short), other.share("x", 2*short)
		w, _ := writer.claims("x", 0)
		g := writer.promoted(w)
		requireSince(t, start, 2*short)
		require.Greater(t, g.Token, a.Token)
		for _, c := range []store.Claim{a.Claim, b.Claim} {
			require.False(t, p.extend(c, long, 0))
			require.False(t, p.owns(c))
			n, _, err := p.Renew(ctx, []store.Claim{c}, long, 1, 0)
			require.NoError(t, err)
			require.Zero(t, n)
			freed, _ := p.release(c)
			require.False(t, freed)
		}
	}},
	{"what is left of a shared hold bounds the wait for it", func(t *testing.T, newProcess func() *process) {
		p, other, writer := newProcess(), newProcess(), newProcess()
		p.share("x", long)
		other.share("x", 2*short)
		_, g := writer.claims("x", 0)
		require.LessOrEqual(t, g.Remaining, 2*short)
	}},
	{"a session keeps shared holds, until it is dead", func(t *testing.T, newProcess func() *process) {
		p, other, writer := newProcess(), newProcess(), newProcess()
		id := p.begin(long)
		kept := p.share("x", time.Microsecond)
		require.True(t, p.extend(kept.Claim, time.Microsecond, id))
		start := time.Now()
		dying := other.begin(2 * short)
		dead := other.share("x", time.Microsecond)
		require.True(t, other.extend(dead.Claim, time.Microsecond, dying))
		time.Sleep(time.Millisecond)
		further := p.share("x", long)
		require.NotEqual(t, kept.Claim.Name, further.Claim.Name)
		p.release(further.Claim)
		w, _ := writer.claims("x", 0)
		for time.Since(start) < 3*short {
			require.True(t, writer.acquire(w).Claimed)
			time.Sleep(short / 2)
		}
		require.True(t, p.owns(kept.Claim))
		require.False(t, other.owns(dead.Claim))
		require.Empty(t, other.bound(dying))
		requireDead(t, other, dying)
		p.release(kept.Claim)
		require.NotZero(t, writer.acquire(w).Token)
	}},
	{"a request that must not claim does not", func(t *testing.T, newProcess func() *process) {
		p, other, writer := newProcess(), newProcess(), newProcess()
		a := p.share("x", long)
		before := p.row("x").Owner
		_, g := writer.try("x", long, 0)
		require.Equal(t, before, p.row("x").Owner, "not even for a moment")
		require.Zero(t, g.Token)
		require.False(t, g.Claimed)
		require.Positive(t, g.Remaining)
		b := other.share("x", long)
		_, g = writer.try("x", long, writer.self)
		require.False(t, g.Claimed)
		require.Equal(t, writer.self, p.row("x").Next)
		p.release(a.Claim)
		other.release(b.Claim)
		writer.take("x", long)
	}},
	{"a released claim leaves the name as it was", func(t *testing.T, newProcess func() *process) {
		p, other, writer := newProcess(), newProcess(), newProcess()
		a := p.share("x", long)
		w, _ := writer.claims("x", 0)
		other.shareRefused("x", 0)
		freed, _ := writer.release(w.Claim)
		require.True(t, freed)
		require.Equal(t, a.Token, other.share("x", long).Token)
		require.True(t, p.owns(a.Claim))
		w, _ = writer.claims("x", 0)
		require.False(t, p.row("x").Listed)
	}},
	{"a claim ends if its request is not sent again", func(t *testing.T, newProcess func() *process) {
		p, other, writer, second := newProcess(), newProcess(), newProcess(), newProcess()
		a := p.share("x", long)
		w, _ := writer.claims("x", 0)
		start := time.Now()
		var b store.Grant
		for ; b.Token == 0; time.Sleep(short / 2) {
			require.Less(t, time.Since(start), testTimeout)
			_, b = other.tryShare("x", long, 0)
		}
		requireSince(t, start, store.ClaimLease-short)
		require.Equal(t, a.Token, b.Token)
		require.True(t, writer.acquire(w).Claimed, "it claims again")
		other.shareRefused("x", 0)
		writer.release(w.Claim)

		second.claims("x", 0)
		g := writer.acquire(w)
		require.Zero(t, g.Token)
		require.False(t, g.Claimed, "another has claimed it")
	}},
	{"a claim that is sent again lasts longer", func(t *testing.T, newProcess func() *process) {
		p, writer := newProcess(), newProcess()
		p.share("x", long)
		w, _ := writer.claims("x", 0)
		time.Sleep(time.Second)
		require.LessOrEqual(t, p.row("x").Lease, store.ClaimLease-time.Second)
		require.True(t, writer.acquire(w).Claimed)
		require.Greater(t, p.row("x").Lease, store.ClaimLease-time.Second)
	}},
	{"a listener finds that a name that it has claimed is not held shared any more", func(t *testing.T, newProcess func() *process) {
		p, other, writer, second := newProcess(), newProcess(), newProcess(), newProcess()
		listen := func(p *process, name string) store.Wakeup {
			h, err := p.Listen(ctx, []string{name}, 10*time.Millisecond)
			require.NoError(t, err)
			return h
		}
		a, b := p.share("x", long), other.share("x", 3*short)
		w, _ := writer.claims("x", writer.self)
		require.Zero(t, listen(writer, "x"))
		p.release(a.Claim)
		time.Sleep(3 * short)
		require.Zero(t, listen(writer, "x"), "it has expired, but could still be extended")
		other.release(b.Claim)
		require.Equal(t, store.Wakeup{Name: "x"}, listen(writer, "x"))
		require.NotZero(t, writer.acquire(w).Token)

		a = p.share("y", long)
		w, _ = writer.claims("y", 0)
		writer.release(w.Claim)
		second.claims("y", second.self)
		writer.waits("y")
		p.release(a.Claim)
		require.Zero(t, listen(writer, "y"), "it is another's claim")
		require.Equal(t, store.Wakeup{Name: "y"}, listen(second, "y"))
	}},
	{"a shared hold that is given back stays taken until its minimum has passed", func(t *testing.T, newProcess func() *process) {
		p, writer := newProcess(), newProcess()
		a := p.share("x", long)
		freed, _ := p.releaseAfter(a.Claim, store.MinHold{Held: time.Minute})
		require.True(t, freed)
		w, g := writer.claims("x", 0)
		require.Equal(t, time.Second, g.Remaining)
		require.True(t, writer.acquire(w).Claimed)
	}},
	{"a lock has nothing to do with the semaphore of its name", func(t *testing.T, newProcess func() *process) {
		p, writer := newProcess(), newProcess()
		permit := p.takePermit("x", 1, long)
		p.release(p.share("x", long).Claim)
		_, g := writer.tryClaim("x", 0)
		require.NotZero(t, g.Token)
		require.True(t, p.owns(permit.Claim))
	}},
	{"a claim that comes after its release claims nothing", func(t *testing.T, newProcess func() *process) {
		p, writer, other := newProcess(), newProcess(), newProcess()
		a := p.share("x", long)
		w, _ := writer.claims("x", 0)
		freed, _ := writer.release(w.Claim)
		require.True(t, freed)
		for _, claimed := range []bool{true, false} {
			w.Claimed = claimed
			g := writer.acquire(w)
			require.True(t, g.Locked)
			require.Zero(t, g.Token)
			require.False(t, p.owns(w.Claim))
		}
		p.release(a.Claim)
		require.Zero(t, writer.acquire(w).Token)
		other.share("x", long)
	}},
	{"a repeated claim changes nothing", func(t *testing.T, newProcess func() *process) {
		p, writer := newProcess(), newProcess()
		a := p.share("x", long)
		w, _ := writer.claims("x", writer.self)
		for _, change := range []func(*store.AcquireRequest){
			func(b *store.AcquireRequest) { b.Claimed = false },
			func(b *store.AcquireRequest) { b.Claimed, b.EnlistAs = false, 0 },
			func(b *store.AcquireRequest) { b.EnlistAs = 0 },
		} {
			b := w
			change(&b)
			require.True(t, writer.acquire(b).Claimed)
			require.Equal(t, writer.self, p.row("x").Next)
			require.Equal(t, 1, p.inspect("x").Waiters)
			require.LessOrEqual(t, p.row("x").Lease, store.ClaimLease)
			require.True(t, p.owns(a.Claim))
		}
		p.release(a.Claim)
		g := writer.acquire(w)
		require.NotZero(t, g.Token)
		id := writer.begin(long)
		require.True(t, writer.extend(g.Claim, 2*long, id))
		again := writer.acquire(w)
		require.Equal(t, g.Token, again.Token)
		require.Greater(t, p.row("x").Lease, long)
		require.Equal(t, []store.Claim{g.Claim}, writer.bound(id))
	}},
	{"a claim waits at the front of the wait queue, and the others stay behind it", func(t *testing.T, newProcess func() *process) {
		p, writer, reader, last := newProcess(), newProcess(), newProcess(), newProcess()
		a := p.share("x", long)
		w, _ := writer.claims("x", 0)
		reader.shareRefused("x", reader.self)
		require.Equal(t, reader.self, p.row("x").Next)
		w.EnlistAs = writer.self
		require.True(t, writer.acquire(w).Claimed)
		_, g := last.tryClaim("x", last.self)
		require.False(t, g.Claimed)
		require.Equal(t, writer.self, p.row("x").Next)
		p.release(a.Claim)
		g = writer.acquire(w)
		require.NotZero(t, g.Token)
		_, next := writer.release(g.Claim)
		require.Equal(t, reader.self, next)
		b := reader.share("x", long)
		require.Equal(t, last.self, p.row("x").Next)
		v, _ := last.claims("x", last.self)
		reader.release(b.Claim)
		require.NotZero(t, last.acquire(v).Token)
	}},
	{"a claim that is given up lets the next one in", func(t *testing.T, newProcess func() *process) {
		p, writer, reader := newProcess(), newProcess(), newProcess()
		a := p.share("x", long)
		w, _ := writer.claims("x", writer.self)
		reader.shareRefused("x", reader.self)
		writer.release(w.Claim)
		next, all, err := writer.RemoveWaiter(ctx, []string{"x"}, writer.self)
		require.NoError(t, err)
		require.True(t, all)
		require.Equal(t, reader.self, next)
		require.Equal(t, a.Token, reader.share("x", long).Token)
	}},
	{"waiting shared requests are admitted one after the other, up to an exclusive one", func(t *testing.T, newProcess func() *process) {
		p, first, second, writer, late := newProcess(), newProcess(), newProcess(), newProcess(), newProcess()
		c := p.take("x", long)
		first.shareRefused("x", first.self)
		second.shareRefused("x", second.self)
		writer.waits("x")
		_, next := p.release(c)
		require.Equal(t, first.self, next)
		g := late.shareRefused("x", 0)
		require.True(t, g.Reserved)
		token := first.share("x", long).Token
		require.Equal(t, second.self, p.row("x").Next)
		late.shareRefused("x", 0)
		require.Equal(t, token, second.share("x", long).Token)
		require.Equal(t, writer.self, p.row("x").Next)
		late.shareRefused("x", late.self)
		writer.claims("x", writer.self)
		late.shareRefused("x", 0)
		require.Equal(t, writer.self, p.row("x").Next)
	}},
	{"a name is reserved for the next after each request that is admitted", func(t *testing.T, newProcess func() *process) {
		p, first, second, late := newProcess(), newProcess(), newProcess(), newProcess()
		p.take("x", short)
		first.shareRefused("x", first.self)
		second.shareRefused("x", second.self.Polling())
		time.Sleep(short + reservedForPolling)
		first.share("x", long)
		require.True(t, late.shareRefused("x", 0).Reserved)
		second.share("x", long)
		late.share("x", long)
	}},
	{"a name is exclusive again after it was held shared", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.release(p.share("x", long).Claim)
		for range 2 {
			c := p.take("x", long)
			other.waits("x")
			other.shareRefused("x", 0)
			require.NotZero(t, p.acquire(store.AcquireRequest{Claim: c, Lease: long}).Token, "a copy")
			_, next := p.release(c)
			require.Equal(t, other.self, next)
			c = other.take("x", long)
			other.release(c)
		}
	}},
}

var sharedForcedReleases = []clause{
	{"a forced release frees a name from all its holders", func(t *testing.T, newProcess func() *process) {
		p, other, waiter := newProcess(), newProcess(), newProcess()
		a, b, c := p.share("x", long), other.share("x", long), p.share("x", long)
		p.share("xy", long)
		w, _ := waiter.claims("x", waiter.self)
		released := newProcess()
		kept := released.share("y", long)
		freed, next, err := newProcess().ForceUnlock(ctx, "x")
		require.NoError(t, err)
		require.ElementsMatch(t, []store.Claim{a.Claim, b.Claim, c.Claim, w.Claim}, freed)
		require.Equal(t, waiter.self, next)
		for _, c := range freed {
			require.False(t, p.owns(c))
			require.False(t, p.extend(c, long, 0))
			freed, _ := p.release(c)
			require.False(t, freed)
		}
		require.True(t, p.owns(kept.Claim), "of another name")
		require.Greater(t, waiter.share("x", long).Token, a.Token)
	}},
	{"a forced release frees shared holds that a session keeps, and is reported to each process once", func(t *testing.T, newProcess func() *process) {
		p, other, unaffected := newProcess(), newProcess(), newProcess()
		id, otherID := p.begin(long), other.begin(long)
		a, b := p.share("x", time.Microsecond), other.share("x", time.Microsecond)
		require.True(t, p.extend(a.Claim, time.Microsecond, id))
		require.True(t, other.extend(b.Claim, time.Microsecond, otherID))
		time.Sleep(time.Millisecond)
		freed, _, err := unaffected.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		require.ElementsMatch(t, []store.Claim{a.Claim, b.Claim}, freed)
		require.Empty(t, p.bound(id))
		for _, q := range []*process{p, other} {
			for i := range 2 {
				r, err := q.RenewSession(ctx, q.self.FirstSession(), long)
				require.NoError(t, err)
				require.Equal(t, i == 0, r.Forced)
			}
		}
		r, err := unaffected.RenewSession(ctx, unaffected.begin(long), long)
		require.NoError(t, err)
		require.False(t, r.Forced)
		further := unaffected.share("x", long)
		require.GreaterOrEqual(t, further.Token, a.Token+store.TokenRange)
		unaffected.release(further.Claim)
		unaffected.take("x", long)
	}},
	{"a forced release finds no holder of a name that was released", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.release(p.share("released", long).Claim)
		p.share("expired", time.Microsecond)
		time.Sleep(time.Millisecond)
		for _, name := range []string{"released", "expired"} {
			freed, next, err := other.ForceUnlock(ctx, name)
			require.NoError(t, err)
			require.Empty(t, freed, name)
			require.Zero(t, next, name)
		}
	}},
}

var downgrades = []clause{
	{"an exclusive hold becomes shared", func(t *testing.T, newProcess func() *process) {
		p, other, writer := newProcess(), newProcess(), newProcess()
		c, first := p.try("x", long, 0)
		g, next := p.downgrade(c, time.Minute)
		require.Zero(t, next)
		require.GreaterOrEqual(t, g.Token, first.Token+store.TokenRange)
		require.Equal(t, store.Shared, store.ModeOf(g.Claim.Name))
		require.True(t, p.owns(g.Claim))
		require.False(t, p.owns(c))
		freed, _ := p.release(c)
		require.False(t, freed)
		require.False(t, p.extend(c, long, 0))
		require.Greater(t, p.row(g.Claim.Name).Lease, 50*time.Second)
		require.LessOrEqual(t, p.row(g.Claim.Name).Lease, time.Minute)
		b := other.share("x", long)
		require.Equal(t, g.Token, b.Token)
		w, _ := writer.claims("x", 0)
		p.release(g.Claim)
		require.True(t, writer.acquire(w).Claimed)
		other.release(b.Claim)
		require.Greater(t, writer.acquire(w).Token, g.Token)
	}},
	{"a downgrade returns the head of the wait queue, and leaves the queue as it was", func(t *testing.T, newProcess func() *process) {
		p, reader, writer := newProcess(), newProcess(), newProcess()
		p.release(p.share("x", long).Claim)
		c := p.take("x", long)
		reader.shareRefused("x", reader.self)
		writer.waits("x")
		time.Sleep(store.ReservedFor) // since the last shared request
		g, next := p.downgrade(c, long)
		require.Equal(t, reader.self, next)
		require.True(t, newProcess().shareRefused("x", 0).Reserved)
		require.Equal(t, g.Token, reader.share("x", long).Token)
		require.Equal(t, writer.self, p.row("x").Next)
		writer.claims("x", writer.self)
	}},
	{"only the owner of an exclusive hold makes it shared", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := other.take("x", long)
		for _, from := range []store.Claim{p.claim("x"), p.claim("missing")} {
			g, next, err := p.Downgrade(ctx, from, store.AcquireRequest{Claim: p.claim(from.Name), Mode: store.Shared, Lease: long})
			require.ErrorIs(t, err, store.ErrNotOwned)
			require.False(t, store.OutcomeUnknown(err))
			require.Equal(t, store.Grant{}, sentAside(g))
			require.Zero(t, next)
		}
		require.True(t, other.owns(c))
		other.release(c)
		p.take("x", long)
	}},
	{"a name is not free while an exclusive hold becomes shared", func(t *testing.T, newProcess func() *process) {
		p, writer := newProcess(), newProcess()
		for range 5 {
			c := p.take("x", long)
			done := make(chan struct{})
			go func() {
				defer close(done)
				for range 50 {
					_, g := writer.try("x", long, 0)
					if g.Token > 0 {
						t.Error("it was free")
						return
					}
				}
			}()
			g, _ := p.downgrade(c, long)
			<-done
			p.release(g.Claim)
		}
	}},
}

// tryShare requests a name shared.
func (p *process) tryShare(name string, lease time.Duration, enlistAs store.Process) (store.AcquireRequest, store.Grant) {
	p.t.Helper()
	b := store.AcquireRequest{Claim: p.claim(name), Mode: store.Shared, Lease: lease, EnlistAs: enlistAs}
	return b, p.acquire(b)
}

// share acquires a name shared.
func (p *process) share(name string, lease time.Duration) store.Grant {
	p.t.Helper()
	b, g := p.tryShare(name, lease, 0)
	require.NotZero(p.t, g.Token, "%+v", g)
	require.Equal(p.t, b.Owner, g.Claim.Owner)
	return g
}

// shareRefused requires that a shared request is refused.
func (p *process) shareRefused(name string, enlistAs store.Process) store.Grant {
	p.t.Helper()
	_, g := p.tryShare(name, long, enlistAs)
	require.Zero(p.t, g.Token)
	require.False(p.t, g.Locked)
	return g
}

// heldShared requires that an exclusive request is refused.
func (p *process) heldShared(name string) {
	p.t.Helper()
	_, g := p.try(name, long, 0)
	require.Zero(p.t, g.Token)
}

// tryClaim requests a name exclusively, and may claim it.
func (p *process) tryClaim(name string, enlistAs store.Process) (store.AcquireRequest, store.Grant) {
	p.t.Helper()
	b := store.AcquireRequest{Claim: p.claim(name), Lease: long, EnlistAs: enlistAs, MayClaim: true}
	return b, p.acquire(b)
}

// claims claims a name that is held shared. The request must be sent again.
func (p *process) claims(name string, enlistAs store.Process) (store.AcquireRequest, store.Grant) {
	p.t.Helper()
	b, g := p.tryClaim(name, enlistAs)
	require.True(p.t, g.Claimed, "%+v", g)
	require.Zero(p.t, g.Token)
	require.Equal(p.t, b.Claim, g.Claim)
	b.Claimed = true
	return b, g
}

// promoted sends the request of a claim until it is granted.
func (p *process) promoted(req store.AcquireRequest) store.Grant {
	p.t.Helper()
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		g := p.acquire(req)
		if g.Token > 0 {
			return g
		}
		require.Less(p.t, time.Since(start), testTimeout)
		require.True(p.t, g.Claimed)
	}
}

// downgrade makes an exclusive hold shared.
func (p *process) downgrade(c store.Claim, lease time.Duration) (g store.Grant, next store.Process) {
	p.t.Helper()
	to := store.AcquireRequest{Claim: p.claim(c.Name), Mode: store.Shared, Lease: lease}
	for start := time.Now(); ; {
		g, next, err := p.Downgrade(ctx, c, to)
		if store.Contended(err) && time.Since(start) < testTimeout {
			continue
		}
		require.NoError(p.t, err)
		require.Equal(p.t, to.Owner, g.Claim.Owner)
		return g, next
	}
}
