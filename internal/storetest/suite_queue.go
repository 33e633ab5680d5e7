package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

var waitQueues = []clause{
	{"a refused request joins the wait queue once", func(t *testing.T, newProcess func() *process) {
		p, waiter := newProcess(), newProcess()
		c := p.take("x", long)
		for range 2 {
			waiter.waits("x")
		}
		_, g := waiter.try("x", long, waiter.self.Polling())
		require.Zero(t, g.Token)
		seen := waiter.row("x")
		require.Equal(t, waiter.self, seen.Next)
		require.True(t, seen.Listed)
		require.True(t, seen.Waiting)
		seen = p.row("x")
		require.Equal(t, waiter.self, seen.Next)
		require.False(t, seen.Listed)
		require.False(t, seen.Waiting)
		_, next := p.release(c)
		require.Equal(t, waiter.self, next)
		waiter.take("x", long)
		require.Zero(t, p.row("x").Next)
	}},
	{"a request without enlisting does not join", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		c := p.take("x", long)
		other.refused("x")
		require.Zero(t, other.row("x").Next)
		_, next := p.release(c)
		require.Zero(t, next)
		_, g := other.try("x", long, other.self)
		require.NotZero(t, g.Token)
		require.Zero(t, other.row("x").Next, "nor does a granted one")
	}},
	{"processes wait in the order in which they joined", func(t *testing.T, newProcess func() *process) {
		p := newProcess()
		c := p.take("x", long)
		var waiters []*process
		var ids []store.Process
		for _, id := range []func(store.Process) store.Process{listening, store.Process.Polling, listening} {
			waiter := newProcess()
			_, g := waiter.try("x", long, id(waiter.self))
			require.Zero(t, g.Token)
			waiters, ids = append(waiters, waiter), append(ids, id(waiter.self))
		}
		for i, waiter := range waiters {
			freed, next := p.release(c)
			require.True(t, freed)
			require.Equal(t, ids[i], next)
			c = waiter.take("x", long)
			require.False(t, waiter.row("x").Listed)
		}
		_, next := p.release(c)
		require.Zero(t, next)
	}},
	{"a released row is reserved for a listening head", func(t *testing.T, newProcess func() *process) {
		requireReserved(t, newProcess, listening, store.ReservedFor)
	}},
	{"a released row is reserved for longer if the head polls", func(t *testing.T, newProcess func() *process) {
		requireReserved(t, newProcess, store.Process.Polling, reservedForPolling)
	}},
	{"an expired row is reserved from the end of the lease on", func(t *testing.T, newProcess func() *process) {
		p, head, other := newProcess(), newProcess(), newProcess()
		start := time.Now()
		p.take("x", short)
		_, g := head.try("x", long, head.self)
		require.Zero(t, g.Token)
		other.takeWhenFree("x", long, nil)
		requireSince(t, start, short+store.ReservedFor)
	}},
	{"a waiter that is not the head respects the reservation", func(t *testing.T, newProcess func() *process) {
		p, head, second := newProcess(), newProcess(), newProcess()
		c := p.take("x", long)
		head.waits("x")
		second.waits("x")
		start := time.Now()
		p.release(c)
		second.takeWhenFree("x", long, nil)
		requireSince(t, start, store.ReservedFor)
		require.Zero(t, p.row("x").Next, "the head and the second have left the queue")
	}},
	{"a removed waiter returns the next one of a free row", func(t *testing.T, newProcess func() *process) {
		p, head, second, third := newProcess(), newProcess(), newProcess(), newProcess()
		remove := func(removed *process, next store.Process, all bool, names ...string) {
			t.Helper()
			gotNext, gotAll, err := p.RemoveWaiter(ctx, names, removed.self)
			require.NoError(t, err)
			require.Equal(t, next, gotNext)
			require.Equal(t, all, gotAll)
		}
		x, y := p.take("x", long), p.take("y", long)
		for _, waiter := range []*process{head, second, third} {
			waiter.waits("x")
		}
		_, g := head.try("y", long, head.self.Polling())
		require.Zero(t, g.Token)
		remove(second, 0, true, "x")
		require.False(t, second.row("x").Listed)
		remove(second, 0, false, "x")
		remove(second, 0, false, "missing")
		p.release(y)
		remove(head, 0, true, "x", "y")
		p.release(x)
		remove(third, 0, true, "x")

		x = p.take("x", long)
		head.waits("x")
		second.waits("x")
		p.release(x)
		remove(head, second.self, false, "x", "missing")
		remove(second, 0, true, "x")
		head.take("x", long)
	}},
	{"a full wait queue takes no more, and does not wait in vain", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.take("x", long)
		for range maxWaiters {
			require.False(t, other.row("x").Waiting)
			_, g := p.try("x", long, store.NewProcess())
			require.Zero(t, g.Token)
		}
		other.waits("x")
		require.False(t, other.row("x").Listed)
		require.True(t, other.row("x").Waiting)
	}},
}

// requireReserved requires that a released row is reserved for its head, which is removed if it
// does not take the row in time.
func requireReserved(t *testing.T, newProcess func() *process, id func(head store.Process) store.Process, window time.Duration) {
	t.Helper()
	p, head, other := newProcess(), newProcess(), newProcess()
	c := p.take("x", long)
	_, g := head.try("x", long, id(head.self))
	require.Zero(t, g.Token)
	start := time.Now()
	_, next := p.release(c)
	require.Equal(t, id(head.self), next)
	other.takeWhenFree("x", long, func(g store.Grant) {
		require.True(t, g.Reserved)
		require.Equal(t, store.ReservedFor, g.Remaining)
	})
	requireSince(t, start, window)
	require.Zero(t, other.row("x").Next)
}

func listening(p store.Process) store.Process { return p }
