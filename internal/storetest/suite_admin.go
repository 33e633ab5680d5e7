package storetest

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

var operations = []clause{
	{"an inspection shows the holder and the end of its lease, or of the session that keeps the row", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		require.Equal(t, store.Info{Name: "x"}, other.inspect("x"))

		id := p.begin(30 * time.Minute)
		p.takeKept("kept", id)
		start := time.Now().Add(-time.Millisecond)
		c, g := p.try("x", long, 0)
		other.waits("x")
		for name, left := range map[string]time.Duration{"x": long, "kept": 30 * time.Minute} {
			info := other.inspect(name)
			require.Equal(t, name, info.Name)
			require.True(t, info.Held, name)
			require.Equal(t, Label, info.Holder)
			require.Equal(t, 1, info.Holds)
			requireLeft(t, left, info.ExpiresIn, name)
			require.Equal(t, time.UTC, info.ExpiresAt.Location())
			requireLeft(t, left+time.Millisecond, time.Until(info.ExpiresAt), name)
		}
		info := other.inspect("x")
		require.Equal(t, c.Owner, info.Owner)
		require.Equal(t, g.Token, info.Token)
		require.Equal(t, 1, info.Waiters)
		require.Less(t, info.AcquiredAt.Sub(start), testTimeout)
		require.False(t, info.AcquiredAt.Before(start))

		p.release(c)
		require.Equal(t, store.Info{Name: "x", Token: g.Token, Waiters: 1}, other.inspect("x"))
	}},
	{"an inspection shows how many handles the last write had", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		c := p.take("x", long)
		_, _, err := p.Extend(ctx, c, long, 3, 0)
		require.NoError(t, err)
		require.Equal(t, 3, p.inspect("x").Holds)
		_, _, err = p.Renew(ctx, []store.Claim{c}, long, 2, 0)
		require.NoError(t, err)
		require.Equal(t, 2, p.inspect("x").Holds)
		_, _, err = p.Renew(ctx, []store.Claim{c}, long, 0, 0)
		require.NoError(t, err)
		require.Equal(t, 2, p.inspect("x").Holds)
	}},
	{"an inspection shows the label of the request, and who attached the lock", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		c := p.claim("x")
		p.acquire(store.AcquireRequest{Claim: c, Lease: long, Holder: "a job"})
		require.Equal(t, "a job", p.inspect("x").Holder)
		for holder, names := range map[string][]string{"": {"a", "b"}, "a job": {"c", "d"}} {
			g, err := p.AcquireAll(ctx, store.BatchRequest{Names: names, Owner: store.NewOwnerID(p.self), Lease: long, Holder: holder})
			require.NoError(t, err)
			for range g.Granted {
				p.t.Cleanup(p.HoldEnded)
			}
			require.Equal(t, cmp.Or(holder, Label), p.inspect(names[1]).Holder)
		}
		for _, holder := range []string{"another job", Label} {
			ticket := store.NewTicketID(p.self)
			detached, _, _, err := p.Detach(ctx, store.DetachRequest{Claim: c, Ticket: ticket, Lease: long})
			require.NoError(t, err)
			require.True(t, detached)
			info := p.inspect("x")
			require.True(t, info.Held)
			require.Zero(t, info.Holds)

			c = p.claim("x")
			g, err := p.Attach(ctx, store.AttachRequest{Claim: c, Ticket: ticket, Lease: long, Holder: strings.TrimSuffix(holder, Label)})
			require.NoError(t, err)
			require.NotZero(t, g.Token)
			p.t.Cleanup(p.HoldEnded)
			info = p.inspect("x")
			require.Equal(t, holder, info.Holder)
			require.Equal(t, 1, info.Holds)
		}
	}},
	{"the list has the locks that are held, by name", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.takeKept("c", p.begin(long))
		p.take("b", long)
		other.take("a", long)
		p.takeExpired("expired")
		p.release(p.take("free", long))
		infos, err := other.List(ctx)
		require.NoError(t, err)
		require.Len(t, infos, 3)
		for i, name := range []string{"a", "b", "c"} {
			require.Equal(t, name, infos[i].Name)
			require.True(t, infos[i].Held)
			require.Equal(t, p.inspect(name).Owner, infos[i].Owner)
		}
	}},
	{"a purge deletes the rows that were idle for long enough", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		p.take("held", long)
		p.takeKept("kept", p.begin(long))
		p.takeExpired("expired")
		p.release(p.take("released", long))
		purge := func(idle time.Duration, deleted int64) {
			t.Helper()
			n, err := p.Purge(ctx, idle)
			require.NoError(t, err)
			require.Equal(t, deleted, n)
		}
		purge(long, 0)
		purge(0, 2)
		rows, _, err := p.Look(ctx, []string{"held", "kept", "expired", "released"})
		require.NoError(t, err)
		require.Len(t, rows, 2)
		require.Contains(t, rows, "held")
		require.Contains(t, rows, "kept")
	}},
	{"a purge leaves a row that is reserved for a waiter", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", long)
		other.waits("x")
		start := time.Now()
		p.release(c)
		n, err := p.Purge(ctx, 0)
		require.NoError(t, err)
		if time.Since(start) < store.ReservedFor {
			require.Zero(t, n)
			require.Equal(t, 1, p.inspect("x").Waiters)
		}
		time.Sleep(store.ReservedFor + time.Millisecond)
		n, err = p.Purge(ctx, 0)
		require.NoError(t, err)
		require.LessOrEqual(t, n, int64(1))
		require.Zero(t, p.inspect("x").Waiters)
	}},
	{"a purge leaves a name that is held shared", func(t *testing.T, newProcess func() *process) {
		p, other, writer := newProcess(), newProcess(), newProcess()
		a := p.share("x", long)
		_, err := p.Purge(ctx, 0)
		require.NoError(t, err)
		writer.refused("x")
		b := other.share("x", long)
		require.Equal(t, a.Token, b.Token)
		p.release(a.Claim)
		other.release(b.Claim)
		_, err = p.Purge(ctx, 0)
		require.NoError(t, err)
		_, g := writer.try("x", long, 0)
		require.GreaterOrEqual(t, g.Token, a.Token+store.TokenRange)
	}},
	{"tokens rise after a purge", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		c, g := p.try("x", long, 0)
		for range 3 { // each force raises the token further above the clock
			p.force("x")
			c, g = p.try("x", long, 0)
		}
		p.release(c)
		_, err := p.Purge(ctx, 0)
		require.NoError(t, err)
		_, first := p.try("x", long, 0)
		require.GreaterOrEqual(t, first.Token, g.Token+store.TokenRange)

		// The same for a name that is first held shared, and for a batch.
		for i, acquire := range []func() uint64{
			func() uint64 { return p.share("x", long).Token },
			func() uint64 { _, g := p.tryAll([]string{"x", "y"}, long); return g.Token },
		} {
			p.force("x")
			c, g := p.try("x", long, 0)
			p.release(c)
			_, err = p.Purge(ctx, 0)
			require.NoError(t, err)
			require.GreaterOrEqual(t, acquire(), g.Token+store.TokenRange, i)
			p.ForceUnlock(ctx, "x")
		}
	}},
}

func (p *process) inspect(name string) store.Info {
	p.t.Helper()
	info, err := p.Inspect(ctx, name)
	require.NoError(p.t, err)
	return info
}
