package storetest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/store"
)

var forcedReleases = []clause{
	{"a forced release frees the row, and returns its owner and the next process", func(t *testing.T, newProcess func() *process) {
		p, head, other := newProcess(), newProcess(), newProcess()
		c := p.take("x", long)
		head.waits("x")
		owner, next := other.force("x")
		require.Equal(t, c.Owner, owner)
		require.Equal(t, head.self, next)
		require.False(t, p.owns(c))
		require.False(t, p.extend(c, long, 0))
		freed, _ := p.release(c)
		require.False(t, freed, "another owner's by now, for all it knows")
		require.Negative(t, p.row("x").Remaining)
		head.take("x", long)
	}},
	{"a forced release frees a row that a session keeps", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		id := p.begin(long)
		c := p.takeKept("x", id)
		owner, _ := other.force("x")
		require.Equal(t, c.Owner, owner)
		require.Empty(t, p.bound(id))
		other.take("x", long)
	}},
	{"a forced release finds no owner of a free row", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.release(p.take("released", long))
		p.takeExpired("expired")
		id := p.begin(long)
		p.takeKept("dead", id)
		require.NoError(t, p.EndSession(ctx, id))
		for _, name := range []string{"missing", "released", "expired", "dead"} {
			owner, next := other.force(name)
			require.Empty(t, owner, name)
			require.Zero(t, next, name)
		}
	}},
	{"a forced release is reported once, by the renewal of the session", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.take("x", long)
		p.take("y", long)
		other.force("x") // before there is a session
		id := p.begin(long)
		for i := range 4 {
			if i == 2 {
				other.force("y")
			}
			r, err := p.RenewSession(ctx, id, long)
			require.NoError(t, err)
			require.Equal(t, i%2 == 0, r.Forced, i)
		}
	}},
	{"a forced release is reported once, by Listen", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		p.take("x", long)
		other.take("held", long)
		p.waits("held")
		other.force("x")
		h, err := p.Listen(ctx, []string{"held"}, testTimeout)
		require.NoError(t, err)
		require.Equal(t, store.Wakeup{Forced: true}, h)
		h, err = p.Listen(ctx, []string{"held"}, 10*time.Millisecond)
		require.NoError(t, err)
		require.Zero(t, h)
		id := p.begin(long)
		r, err := p.RenewSession(ctx, id, long)
		require.NoError(t, err)
		require.False(t, r.Forced)
	}},
	{"a forced release signals the holder", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		other.take("held", long)
		p.waits("held")
		p.take("x", long)
		wakeup := p.listen("held")
		time.Sleep(short)
		other.force("x")
		h := <-wakeup
		if h.Signalled { // else it noticed before it slept
			var err error
			h, err = p.Listen(ctx, []string{"held"}, testTimeout)
			require.NoError(t, err)
		}
		require.Equal(t, store.Wakeup{Forced: true}, h)
	}},
	{"a forced release is not reported to other processes", func(t *testing.T, newProcess func() *process) {
		p, other, third := newProcess(), newProcess(), newProcess()
		p.take("x", long)
		other.take("y", long)
		other.force("x")
		other.force("y") // its own
		for _, unaffected := range []*process{other, third} {
			r, err := unaffected.RenewSession(ctx, unaffected.begin(long), long)
			require.NoError(t, err)
			require.False(t, r.Forced)
		}
	}},
}

var signals = []clause{
	{"a listener returns at a signal", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		other.take("x", long)
		p.waits("x")
		wakeup := p.listen("x")
		other.signalUntil(p, wakeup)
	}},
	{"a listener returns without a signal when its time has passed", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		other.take("x", long)
		p.waits("x")
		start := time.Now()
		h, err := p.Listen(ctx, []string{"x"}, short)
		require.NoError(t, err)
		require.Zero(t, h)
		requireSince(t, start, short)
	}},
	{"a listener sleeps on when another one leaves", func(t *testing.T, newProcess func() *process) {
		p, left, other := newProcess(), newProcess(), newProcess()
		other.take("x", long)
		for _, waiter := range []*process{left, p} {
			waiter.waits("x")
		}
		h, err := left.Listen(ctx, []string{"x"}, time.Millisecond) // before p, so that p waits for it on MariaDB
		require.NoError(t, err)
		require.Zero(t, h)
		var leaving sync.WaitGroup
		defer leaving.Wait()
		start := time.Now()
		leaving.Go(func() {
			time.Sleep(short / 2)
			left.CloseListener()
		})
		h, err = p.Listen(ctx, []string{"x"}, short)
		require.NoError(t, err)
		require.Zero(t, h)
		requireSince(t, start, short)
	}},
	{"a listener returns when its context ends", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		other.take("x", long)
		p.waits("x")
		limited, cancel := context.WithTimeout(ctx, short)
		defer cancel()
		_, err := p.Listen(limited, []string{"x"}, time.Minute)
		require.Error(t, err)
	}},
	{"a listener does not sleep while a row needs a look", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		held := other.take("held", long)
		p.waits("held")
		other.take("not joined", long)
		other.release(other.take("released", long))
		other.takeExpired("expired")
		dead := other.begin(long)
		other.takeKept("dead", dead)
		require.NoError(t, other.EndSession(ctx, dead))
		for name, want := range map[string]store.Wakeup{
			"not joined": {Name: "not joined"},
			"released":   {Name: "released"},
			"expired":    {Name: "expired"},
			"dead":       {Name: "dead"},
			"missing":    {Missing: true},
		} {
			h, err := p.Listen(ctx, []string{"held", name}, testTimeout)
			require.NoError(t, err)
			require.Equal(t, want, h)
		}
		other.release(held)
		h, err := p.Listen(ctx, []string{"held"}, testTimeout)
		require.NoError(t, err)
		require.Equal(t, store.Wakeup{Name: "held"}, h, "reserved for it")
	}},
	{"a listener sleeps while rows are held, kept or reserved for others", func(t *testing.T, newProcess func() *process) {
		p, other, head := newProcess(), newProcess(), newProcess()
		id := other.begin(long)
		other.take("held", long)
		other.takeKept("kept", id)
		reserved := other.take("reserved", long)
		_, g := head.try("reserved", long, head.self.Polling()) // which has more time
		require.Zero(t, g.Token)
		names := []string{"held", "kept", "reserved"}
		for _, name := range names {
			p.waits(name)
		}
		h, err := p.Listen(ctx, names, 10*time.Millisecond)
		require.NoError(t, err)
		require.Zero(t, h)
		start := time.Now()
		other.release(reserved)
		for h == (store.Wakeup{}) {
			h, err = p.Listen(ctx, names, 10*time.Millisecond)
			require.NoError(t, err)
		}
		require.Equal(t, store.Wakeup{Name: "reserved"}, h)
		requireSince(t, start, reservedForPolling)
	}},
	{"a process that does not listen is not signalled", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		alive, err := other.Signal(ctx, p.self)
		require.NoError(t, err)
		require.False(t, alive)
		other.take("x", long)
		p.waits("x")
		for range 2 {
			wakeup := p.listen("x")
			other.signalUntil(p, wakeup)
			time.Sleep(short)
			alive, err := other.Signal(ctx, p.self)
			require.NoError(t, err)
			require.True(t, alive, "it still listens after the signal")
			p.CloseListener()
			for start := time.Now(); ; time.Sleep(10 * time.Millisecond) { // the server notices
				if alive, err := other.Signal(ctx, p.self); err == nil && !alive {
					break
				}
				require.Less(t, time.Since(start), testTimeout)
			}
		}
	}},
	{"a process can be signalled between two calls of Listen", func(t *testing.T, newProcess func() *process) {
		p, other := newProcess(), newProcess()
		other.take("x", long)
		p.waits("x")
		h, err := p.Listen(ctx, []string{"x"}, time.Millisecond)
		require.NoError(t, err)
		require.Zero(t, h)
		alive, err := other.Signal(ctx, p.self)
		require.NoError(t, err)
		require.True(t, alive)
		_, err = p.Listen(ctx, []string{"x"}, 10*time.Millisecond) // the signal may be lost
		require.NoError(t, err)
	}},
}

// listen calls Listen in a goroutine, which sends its result.
func (p *process) listen(names ...string) <-chan store.Wakeup {
	wakeup := make(chan store.Wakeup, 1)
	go func() {
		h, err := p.Listen(ctx, names, testTimeout)
		assert.NoError(p.t, err)
		wakeup <- h
	}()
	return wakeup
}

// signalUntil signals the other process until its Listen returns: a signal before its statement
// began is lost.
func (p *process) signalUntil(other *process, wakeup <-chan store.Wakeup) {
	p.t.Helper()
	for start := time.Now(); ; {
		_, err := p.Signal(ctx, other.self)
		require.NoError(p.t, err)
		select {
		case h := <-wakeup:
			require.Equal(p.t, store.Wakeup{Signalled: true}, h)
			return
		case <-time.After(20 * time.Millisecond):
			require.Less(p.t, time.Since(start), testTimeout)
		}
	}
}
