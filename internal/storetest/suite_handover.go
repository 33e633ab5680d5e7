package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

var handovers = []clause{
	{"a row that is given back stays taken until its minimum has passed", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		start := time.Now()
		c := p.takeBound("x", long, id)
		for range 2 { // the second is a copy
			freed, next := p.releaseAfter(c, store.MinHold{Held: 2 * short})
			require.True(t, freed)
			require.Zero(t, next)
		}
		require.Empty(t, p.bound(id), "no session keeps it")
		require.False(t, p.owns(c))
		require.LessOrEqual(t, p.row("x").Remaining, 2*short)
		taken := other.takeWhenFree("x", long, func(g store.Grant) { require.LessOrEqual(t, g.Remaining, 2*short) })
		requireSince(t, start, 2*short)
		freed, _ := p.releaseAfter(c, store.MinHold{Held: long})
		require.False(t, freed, "a copy that comes too late")
		require.True(t, other.owns(taken))
	}},
	{"a minimum may count from now", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", long)
		until := time.Now().Add(2 * short)
		freed, _ := p.releaseAfter(c, store.MinHold{Held: time.Microsecond, Until: until})
		require.True(t, freed)
		other.takeWhenFree("x", long, nil)
		requireSince(t, until, 0)
	}},
	{"a row whose minimum has passed is released", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", long)
		other.waits("x")
		time.Sleep(time.Millisecond)
		for range 2 {
			freed, next := p.releaseAfter(c, store.MinHold{Held: time.Millisecond, Until: time.Now()})
			require.True(t, freed)
			require.Equal(t, other.self, next)
		}
		other.take("x", long)
	}},
	{"the head of the wait queue is known although the row stays taken", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", long)
		other.waits("x")
		freed, next := p.releaseAfter(c, store.MinHold{Held: 2 * long})
		require.True(t, freed)
		require.Equal(t, other.self, next)
		require.Greater(t, other.refused("x").Remaining, long)
		require.True(t, other.row("x").Listed, "it waits on")
	}},
	{"nothing but force ends the minimum", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		c := p.take("x", long)
		freed, _ := p.releaseAfter(c, store.MinHold{Held: long})
		require.True(t, freed)
		freed, _ = p.release(c)
		require.False(t, freed)
		n, _, err := p.ReleaseAll(ctx, []store.Claim{c})
		require.NoError(t, err)
		require.Zero(t, n)
		require.False(t, p.extend(c, 2*long, id))
		n2, _, err := p.Renew(ctx, []store.Claim{c}, 2*long, 1, id)
		require.NoError(t, err)
		require.Zero(t, n2)
		require.False(t, p.detach(c, store.NewTicketID(p.self), 2*long))
		require.Zero(t, p.acquire(store.AcquireRequest{Claim: p.claim("x"), Lease: long, Replaces: c.Owner}).Token)
		require.LessOrEqual(t, other.refused("x").Remaining, long)
		require.Empty(t, p.bound(id))

		owner, _ := other.force("x")
		require.NotEmpty(t, owner)
		freed, _ = p.releaseAfter(c, store.MinHold{Held: long})
		require.False(t, freed)
		other.take("x", long)
	}},
	{"a minimum is for the owner's row alone", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		c := p.take("x", long)
		for _, wrong := range []store.Claim{p.claim("x"), {Name: "missing", Owner: c.Owner}} {
			freed, next := p.releaseAfter(wrong, store.MinHold{Held: long})
			require.False(t, freed)
			require.Zero(t, next)
		}
		require.True(t, p.owns(c))
	}},
	{"a detached row is attached once, with the same token", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		c, g := p.try("x", long, 0)
		require.True(t, p.extend(c, long, id))
		ticket := store.NewTicketID(p.self)
		for range 2 { // the second is a copy
			require.True(t, p.detach(c, ticket, time.Minute))
		}
		require.Empty(t, p.bound(id))
		require.LessOrEqual(t, p.row("x").Remaining, time.Minute)
		require.False(t, p.extend(c, long, id), "a late renewal")
		freed, _ := p.release(c)
		require.False(t, freed, "a late release")
		freed, _ = p.releaseAfter(c, store.MinHold{Held: long})
		require.False(t, freed)
		other.refused("x")

		req := store.AttachRequest{Claim: other.claim("x"), Ticket: ticket, Lease: long}
		for range 2 { // likewise
			attached := other.attach(req)
			require.Equal(t, g.Token, attached.Token)
			require.Equal(t, req.Claim, attached.Claim)
			require.NotZero(t, attached.Sent)
		}
		require.True(t, other.owns(req.Claim))
		require.Greater(t, p.row("x").Lease, mostLong)
		require.False(t, p.detach(c, ticket, time.Minute), "a late copy")
		again := store.AttachRequest{Claim: p.claim("x"), Ticket: ticket, Lease: long}
		require.Zero(t, p.attach(again).Token)
		require.True(t, other.owns(req.Claim))
		freed, _ = other.release(req.Claim)
		require.True(t, freed)
		require.Zero(t, p.attach(again).Token)
		p.take("x", long)
	}},
	{"an attached row has the lease that is asked for", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		start := time.Now()
		ticket := store.NewTicketID(p.self)
		require.True(t, p.detach(p.take("x", short), ticket, long))
		req := store.AttachRequest{Claim: p.claim("x"), Ticket: ticket, Lease: short}
		require.NotZero(t, p.attach(req).Token)
		require.True(t, p.extend(req.Claim, 2*short, 0))
		require.NotZero(t, p.attach(req).Token, "a late copy does not shorten the lease")
		other.takeWhenFree("x", long, nil)
		requireSince(t, start, 2*short)
		require.Zero(t, p.attach(req).Token)
	}},
	{"a ticket ends with its lease", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c, ticket := p.take("x", long), store.NewTicketID(p.self)
		require.True(t, p.detach(c, ticket, time.Microsecond))
		time.Sleep(time.Millisecond)
		require.False(t, p.detach(c, ticket, long), "a late copy does not revive it")
		_, err := p.Attach(ctx, store.AttachRequest{Claim: p.claim("x"), Ticket: ticket, Lease: long})
		require.ErrorIs(t, err, store.ErrTicketExpired)
		other.take("x", long)
		require.Zero(t, p.attach(store.AttachRequest{Claim: p.claim("x"), Ticket: ticket, Lease: long}).Token)
	}},
	{"force ends a detached row, and a release by its ticket does", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		ticket := store.NewTicketID(p.self)
		require.True(t, p.detach(p.take("x", long), ticket, long))
		owner, _ := other.force("x")
		require.Equal(t, ticket, owner)
		require.Zero(t, p.attach(store.AttachRequest{Claim: p.claim("x"), Ticket: ticket, Lease: long}).Token)

		ticket = store.NewTicketID(p.self)
		require.True(t, p.detach(p.take("x", long), ticket, long))
		freed, _ := other.release(store.Claim{Name: "x", Owner: ticket})
		require.True(t, freed)
		other.take("x", long)
	}},
	{"a minimum counts from the acquire, not from the attach", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		attached := func(name string, age time.Duration) store.Claim {
			c, ticket := p.take(name, long), store.NewTicketID(p.self)
			time.Sleep(short)
			detached, _, _, err := p.Detach(ctx, store.DetachRequest{Claim: c, Ticket: ticket, Lease: long, Age: age})
			require.NoError(t, err)
			require.True(t, detached)
			req := store.AttachRequest{Claim: other.claim(name), Ticket: ticket, Lease: long}
			require.NotZero(t, other.attach(req).Token)
			return req.Claim
		}
		freed, _ := other.releaseAfter(attached("x", 0), store.MinHold{Held: short})
		require.True(t, freed)
		p.take("x", long)
		// Acquired by a handoff, just now.
		freed, _ = other.releaseAfter(attached("y", time.Nanosecond), store.MinHold{Held: long})
		require.True(t, freed)
		require.Greater(t, p.refused("y").Remaining, long-short)
	}},
	{"a shared hold keeps the name taken beside others of its process", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		keep := func(c store.Claim, id string, m store.MinHold) bool {
			kept, err := p.KeepShared(ctx, c, id, "", m)
			require.NoError(t, err)
			return kept
		}
		c, id := p.share("x", long).Claim, store.NewOwnerID(p.self)
		for range 2 { // the second is a copy
			require.True(t, keep(c, id, store.MinHold{Held: short}))
		}
		freed, _ := p.release(c)
		require.True(t, freed)
		require.False(t, keep(c, store.NewOwnerID(p.self), store.MinHold{Held: long}), "it was released")
		require.Greater(t, other.refused("x").Remaining, time.Duration(0))
		other.share("x", time.Microsecond)
		start := time.Now()
		other.takeWhenFree("x", long, nil)
		require.Less(t, time.Since(start), 2*short)
		require.False(t, keep(c, id, store.MinHold{Held: long}), "it holds the name no more")

		c = p.share("y", long).Claim
		require.True(t, keep(c, store.NewOwnerID(p.self), store.MinHold{Until: time.Now().Add(long)}))
		freed, _ = p.release(c)
		require.True(t, freed)
		other.refused("y")
		freedByForce, _, err := other.ForceUnlock(ctx, "y")
		require.NoError(t, err)
		require.Len(t, freedByForce, 1)
		require.False(t, keep(c, id, store.MinHold{Held: long}))
		other.take("y", long)
	}},
	{"a detach returns the process that waits first", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		for _, waits := range []bool{false, true} {
			c := p.take(fmt.Sprint(waits), long)
			want := store.Process(0)
			if waits {
				other.waits(c.Name)
				want = other.self
			}
			detached, next, _, err := p.Detach(ctx, store.DetachRequest{Claim: c, Ticket: store.NewTicketID(p.self), Lease: long})
			require.NoError(t, err)
			require.True(t, detached)
			require.Equal(t, want, next)
		}
	}},
	{"only the owner's row is detached, and only a ticket's attached", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		c, ticket := p.take("x", long), store.NewTicketID(p.self)
		require.False(t, p.detach(p.claim("x"), ticket, long))
		require.False(t, p.detach(store.Claim{Name: "missing", Owner: c.Owner}, ticket, long))
		for _, name := range []string{"x", "missing"} {
			require.Zero(t, p.attach(store.AttachRequest{Claim: p.claim(name), Ticket: ticket, Lease: long}).Token)
		}
		require.True(t, p.owns(c))
	}},
}

func (p *process) releaseAfter(c store.Claim, m store.MinHold) (freed bool, next store.Process) {
	p.t.Helper()
	freed, next, err := p.ReleaseAfter(ctx, c, m)
	require.NoError(p.t, err)
	return freed, next
}

func (p *process) detach(c store.Claim, ticket string, lease time.Duration) bool {
	p.t.Helper()
	detached, _, sent, err := p.Detach(ctx, store.DetachRequest{Claim: c, Ticket: ticket, Lease: lease})
	require.NoError(p.t, err)
	require.NotZero(p.t, sent)
	return detached
}

// attach requires that the database replies.
func (p *process) attach(req store.AttachRequest) store.Grant {
	p.t.Helper()
	g, err := p.Attach(ctx, req)
	require.NoError(p.t, err)
	if g.Token > 0 {
		p.t.Cleanup(p.HoldEnded)
	}
	return g
}
