package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

// releaseToNext releases a row, and grants it to the next process if that takes grants.
func (p *process) releaseToNext(c store.Claim, grant string) (freed bool, next store.Process) {
	p.t.Helper()
	freed, next, err := p.ReleaseToNext(ctx, c, grant)
	require.NoError(p.t, err)
	return freed, next
}

// waitsForGrant joins the wait queue of a row by the id that takes grants, and listens until
// signalled.
func (p *process) waitsForGrant(name string) (wakeup <-chan store.Wakeup) {
	p.t.Helper()
	_, g := p.try(name, long, p.self.Direct())
	require.Zero(p.t, g.Token)
	return p.listenForSignal()
}

// listenForSignal listens until signalled. The process has a row of its own that never needs a look.
func (p *process) listenForSignal() (wakeup <-chan store.Wakeup) {
	p.t.Helper()
	own := "own " + p.self.String()
	rows, _, err := p.Look(ctx, []string{own})
	require.NoError(p.t, err)
	if len(rows) == 0 {
		p.take(own, long)
		p.waits(own)
	}
	h, err := p.Listen(ctx, []string{own}, time.Millisecond) // it can be signalled from now on
	require.NoError(p.t, err)
	require.Zero(p.t, h)
	return p.listen(own)
}

// granted reads what was granted to the process, once its listener has returned.
func (p *process) granted(names ...string) []store.Grant {
	p.t.Helper()
	grants, err := p.Granted(ctx, names)
	require.NoError(p.t, err)
	return grants
}

// grantTo makes other the owner of a row that c owns, and returns what other then reads.
func (p *process) grantTo(other *process, c store.Claim, wakeup <-chan store.Wakeup) store.Grant {
	p.t.Helper()
	grant := store.NewGrantID()
	freed, next := p.releaseToNext(c, grant)
	require.True(p.t, freed)
	require.Equal(p.t, other.self.Direct(), next)
	require.True(p.t, next.TakesGrants())
	p.signalUntil(other, wakeup)
	grants := other.granted(c.Name, "missing")
	require.Len(p.t, grants, 1)
	require.Equal(p.t, store.Claim{Name: c.Name, Owner: other.self.String() + "=" + grant}, grants[0].Claim)
	return grants[0]
}

var directHandoffs = []clause{
	{"a release grants the row to a head that takes grants and listens", func(t *testing.T, newProcess func() *process) {
		p, head, second := newProcess(), newProcess(), newProcess()
		c := p.take("x", long)
		before, err := p.Inspect(ctx, "x")
		require.NoError(t, err)
		head.begin(long)
		wakeup := head.waitsForGrant("x")
		second.waits("x")
		g := p.grantTo(head, c, wakeup)
		require.GreaterOrEqual(t, g.Token, before.Token+store.TokenRange)
		require.LessOrEqual(t, g.Lease, store.GrantLease)
		require.Greater(t, g.Lease, time.Second)
		require.False(t, p.owns(c))
		require.True(t, head.owns(g.Claim))
		after, err := p.Inspect(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, store.Info{
			Name: "x", Held: true, Holder: Label, Owner: g.Claim.Owner, Holds: 1, Token: g.Token, Waiters: 1,
			AcquiredAt: after.AcquiredAt, ExpiresAt: after.AcquiredAt.Add(store.GrantLease), ExpiresIn: after.ExpiresIn,
		}, after)
		require.False(t, after.AcquiredAt.Before(before.AcquiredAt))
		list, err := p.List(ctx)
		require.NoError(t, err)
		require.Equal(t, Label, list[len(list)-1].Holder)
		require.False(t, head.row("x").Listed)
		require.Equal(t, head.self, p.row("x").Grantee)
		freed, next := head.release(g.Claim)
		require.True(t, freed)
		require.Equal(t, second.self, next)
		require.Zero(t, p.row("x").Grantee)
		second.take("x", long)
	}},
	{"a release grants nothing to a head that does not take grants", func(t *testing.T, newProcess func() *process) {
		for _, id := range []func(store.Process) store.Process{listening, store.Process.Polling} {
			p, head := newProcess(), newProcess()
			c := p.takeWhenFree("x", long, nil)
			_, g := head.try("x", long, id(head.self))
			require.Zero(t, g.Token)
			if id(head.self) == head.self {
				_, err := head.Listen(ctx, []string{"x"}, time.Millisecond)
				require.NoError(t, err)
			}
			freed, next := p.releaseToNext(c, store.NewGrantID())
			require.True(t, freed)
			require.Equal(t, id(head.self), next)
			require.Zero(t, p.row("x").Grantee)
			require.NoError(t, func() error { _, _, err := head.Release(ctx, head.take("x", long)); return err }())
		}
	}},
	{"a release grants nothing to a head that does not listen", func(t *testing.T, newProcess func() *process) {
		p, head := newProcess(), newProcess()
		c := p.take("x", long)
		_, g := head.try("x", long, head.self.Direct())
		require.Zero(t, g.Token)
		freed, next := p.releaseToNext(c, store.NewGrantID())
		require.True(t, freed)
		require.Equal(t, head.self, next)
		require.Zero(t, p.row("x").Grantee)
		require.True(t, p.refused("x").Reserved)
		head.take("x", long)
	}},
	{"a release grants nothing to its own process, or to nobody", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		c := p.take("x", long)
		freed, next := p.releaseToNext(c, store.NewGrantID())
		require.True(t, freed)
		require.Zero(t, next)
		c = p.take("x", long)
		wakeup := p.waitsForGrant("x")
		freed, next = p.releaseToNext(c, store.NewGrantID())
		require.True(t, freed)
		require.Equal(t, p.self, next)
		p.signalUntil(p, wakeup)
		require.Empty(t, p.granted("x"))
		p.take("x", long)
	}},
	{"other releases grant nothing", func(t *testing.T, newProcess func() *process) {
		p, head := newProcess(), newProcess()
		wakeup := (<-chan store.Wakeup)(nil)
		for i, release := range []func(c store.Claim) store.Process{
			func(c store.Claim) store.Process { _, next := p.release(c); return next },
			func(c store.Claim) store.Process {
				_, next, err := p.ReleaseAll(ctx, []store.Claim{c})
				require.NoError(t, err)
				return next
			},
			func(c store.Claim) store.Process {
				_, next, err := p.ReleaseAfter(ctx, c, store.MinHold{Held: time.Microsecond})
				require.NoError(t, err)
				return next
			},
			func(store.Claim) store.Process { _, next := p.force("x"); return next },
		} {
			c := p.take("x", long)
			if i == 0 {
				wakeup = head.waitsForGrant("x")
			} else {
				_, g := head.try("x", long, head.self.Direct())
				require.Zero(t, g.Token)
			}
			time.Sleep(time.Millisecond)
			require.Equal(t, head.self, release(c), i)
			require.Zero(t, p.row("x").Grantee)
			require.Equal(t, head.self, p.row("x").Next)
			head.release(head.take("x", long))
		}
		p.signalUntil(head, wakeup)
	}},
	{"a release grants no name that others may hold shared", func(t *testing.T, newProcess func() *process) {
		p, claimer, head := newProcess(), newProcess(), newProcess()
		p.share("x", long)
		b, _ := claimer.claims("x", claimer.self)
		_, _, err := p.RemoveWaiter(ctx, []string{"x"}, claimer.self)
		require.NoError(t, err)
		wakeup := head.waitsForGrant("x")
		freed, next := claimer.releaseToNext(b.Claim, store.NewGrantID())
		require.True(t, freed)
		require.Equal(t, head.self, next)
		require.Zero(t, p.row("x").Grantee)
		p.signalUntil(head, wakeup)
		require.Empty(t, head.granted("x"))
	}},
	{"a release of a row that has another owner grants nothing", func(t *testing.T, newProcess func() *process) {
		p, other, head := newProcess(), newProcess(), newProcess()
		c := p.take("x", long)
		p.release(c)
		other.take("x", long)
		wakeup := head.waitsForGrant("x")
		freed, next := p.releaseToNext(c, store.NewGrantID())
		require.False(t, freed)
		require.Zero(t, next)
		require.Zero(t, p.row("x").Grantee)
		p.signalUntil(head, wakeup)
	}},
	{"a copy of a release that granted the row changes nothing", func(t *testing.T, newProcess func() *process) {
		p, head, second := newProcess(), newProcess(), newProcess()
		c := p.take("x", long)
		wakeup, other := head.waitsForGrant("x"), second.waitsForGrant("x")
		grant := store.NewGrantID()
		_, next := p.releaseToNext(c, grant)
		require.Equal(t, head.self.Direct(), next)
		freed, next := p.releaseToNext(c, grant)
		require.False(t, freed)
		require.Zero(t, next)
		require.Equal(t, head.self, p.row("x").Grantee)
		require.Equal(t, second.self, p.row("x").Next)
		p.signalUntil(head, wakeup)
		g := head.granted("x")
		require.Len(t, g, 1)
		require.Equal(t, grant, g[0].Claim.Owner[20:])
		head.grantTo(second, g[0].Claim, other)
	}},
	{"a request of the process to which the row was granted learns of that", func(t *testing.T, newProcess func() *process) {
		p, head, third := newProcess(), newProcess(), newProcess()
		c := p.take("x", long)
		wakeup := head.waitsForGrant("x")
		p.grantTo(head, c, wakeup)
		for _, enlistAs := range []store.Process{head.self, head.self.Direct(), head.self.Polling()} {
			_, g := head.try("x", long, enlistAs)
			require.True(t, g.Granted)
			require.False(t, head.row("x").Listed, "it does not join the wait queue")
		}
		_, g := head.try("x", long, 0)
		require.Zero(t, g.Token)
		require.Positive(t, g.Remaining)
		require.LessOrEqual(t, g.Remaining, store.GrantLease)
		_, g = third.try("x", long, third.self)
		require.False(t, g.Granted)
		require.True(t, g.HandedOff)
		require.LessOrEqual(t, g.Remaining, store.GrantLease)
		require.True(t, third.row("x").Listed)
		h, err := head.Listen(ctx, []string{"x"}, testTimeout)
		require.NoError(t, err)
		require.Equal(t, store.Wakeup{Name: "x"}, h)
	}},
	{"a grant of a release can be replaced, extended, bound and detached", func(t *testing.T, newProcess func() *process) {
		p, head := newProcess(), newProcess()
		id := head.begin(long)
		c := p.take("x", long)
		wakeup := head.waitsForGrant("x")
		granted := p.grantTo(head, c, wakeup)
		require.True(t, head.extend(granted.Claim, long, id))
		require.Greater(t, p.row("x").Lease, mostLong)
		require.Equal(t, []store.Claim{granted.Claim}, head.bound(id))
		info, err := p.Inspect(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, Label, info.Holder)
		replaced := store.AcquireRequest{Claim: head.claim("x"), Replaces: granted.Claim.Owner, Lease: long, Holder: "job"}
		g := head.acquire(replaced)
		require.GreaterOrEqual(t, g.Token, granted.Token+store.TokenRange)
		require.False(t, head.owns(granted.Claim))
		require.Zero(t, p.row("x").Grantee)
		require.True(t, p.refused("x").Remaining > mostLong)
	}},
	{"an extended grant is not granted again when its first lease is over", func(t *testing.T, newProcess func() *process) {
		p, head := newProcess(), newProcess()
		c := p.take("x", long)
		wakeup := head.waitsForGrant("x")
		granted := p.grantTo(head, c, wakeup)
		info, err := p.Inspect(ctx, "x")
		require.NoError(t, err)
		require.Empty(t, info.Holder, "its process has no session")
		require.True(t, head.extend(granted.Claim, long, 0))
		info, err = p.Inspect(ctx, "x")
		require.NoError(t, err)
		require.Equal(t, Label, info.Holder)
		time.Sleep(store.GrantLease + 10*time.Millisecond)
		require.Empty(t, head.granted("x"))
		_, g := head.try("x", long, head.self)
		require.Zero(t, g.Token)
		require.False(t, g.Granted)
		require.Greater(t, g.Remaining, mostLong)
		require.Zero(t, head.row("x").Grantee)
		require.False(t, p.handedOff("x"))
	}},
	{"a grant of a release that is not extended expires", func(t *testing.T, newProcess func() *process) {
		p, head := newProcess(), newProcess()
		c := p.take("x", long)
		wakeup := head.waitsForGrant("x")
		start := time.Now()
		granted := p.grantTo(head, c, wakeup)
		p.takeWhenFree("x", long, nil)
		requireSince(t, start, store.GrantLease)
		require.False(t, head.owns(granted.Claim))
		require.Empty(t, head.granted("x"))
	}},
	{"a process changes its entry when it begins to take grants, or no longer does", func(t *testing.T, newProcess func() *process) {
		p, first, second := newProcess(), newProcess(), newProcess()
		c := p.take("x", long)
		first.waits("x")
		second.waits("x")
		wakeup := first.waitsForGrant("x")
		granted := p.grantTo(first, c, wakeup) // still first
		wakeup = first.listenForSignal()
		_, g := first.try("x", long, first.self)
		require.True(t, g.Granted)
		first.release(granted.Claim)
		c = second.take("x", long)
		_, g = first.try("x", long, first.self.Direct())
		require.Zero(t, g.Token)
		first.waits("x")
		_, next := second.releaseToNext(c, store.NewGrantID())
		require.Equal(t, first.self, next)
		require.Zero(t, p.row("x").Grantee)
		p.signalUntil(first, wakeup)
	}},
	{"a grant of a release has the label of its process, also when it is kept or detached", func(t *testing.T, newProcess func() *process) {
		p, head := newProcess(), newProcess()
		kept, wakeup := p.take("kept", long), head.waitsForGrant("kept")
		g := p.grantTo(head, kept, wakeup)
		freed, _, err := head.ReleaseAfter(ctx, g.Claim, store.MinHold{Held: long})
		require.NoError(t, err)
		require.True(t, freed)
		require.False(t, p.handedOff("kept"))
		detached, wakeup := p.take("detached", long), head.waitsForGrant("detached")
		g = p.grantTo(head, detached, wakeup)
		ok, _, _, err := head.Detach(ctx, store.DetachRequest{Claim: g.Claim, Ticket: store.NewTicketID(head.self), Lease: long})
		require.NoError(t, err)
		require.True(t, ok)
		require.False(t, p.handedOff("detached"))
		for _, name := range []string{"kept", "detached"} {
			info, err := p.Inspect(ctx, name)
			require.NoError(t, err)
			require.Equal(t, Label, info.Holder, name)
		}
	}},
	{"a removed waiter takes no grant", func(t *testing.T, newProcess func() *process) {
		p, head, second := newProcess(), newProcess(), newProcess()
		c := p.take("x", long)
		wakeup, other := head.waitsForGrant("x"), second.waitsForGrant("x")
		_, all, err := p.RemoveWaiter(ctx, []string{"x"}, head.self)
		require.NoError(t, err)
		require.True(t, all)
		p.grantTo(second, c, other)
		p.signalUntil(head, wakeup)
		require.Empty(t, head.granted("x"))
		_, all, err = p.RemoveWaiter(ctx, []string{"x"}, second.self)
		require.NoError(t, err)
		require.False(t, all, "a process to which the row was granted is not in the queue")
	}},
}

// handedOff reports whether a request that joins the wait queue, and must be refused, learns that a
// release has granted the row.
func (p *process) handedOff(name string) bool {
	p.t.Helper()
	_, g := p.try(name, long, p.self)
	require.Zero(p.t, g.Token)
	return g.HandedOff
}
