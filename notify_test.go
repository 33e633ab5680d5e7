package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

const ms = time.Millisecond

// rarely is a poll interval that no test waits for: what wakes a waiter sooner
// is something else.
var rarely = WithPollInterval(24 * time.Hour)

// Waiters of one process are served first come, first served, and an Unlock lets
// the next one ask at once.
func TestQueueIsFirstComeFirstServed(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(rarely)
		k := f.acquired(l, bg, "x", AutoRenew)
		var waiters []*pending
		for range 20 {
			waiters = append(waiters, f.try(l, bg, "x", WaitForever, AutoRenew))
		}
		require.Equal(t, 20, l.Stats().Waiting)
		require.Equal(t, "acquire 1", f.counts(), "the others ask nobody")
		for i, p := range waiters {
			at := time.Duration(i+1) * time.Second
			f.until(at)
			require.False(t, p.over())
			require.NoError(t, k.Unlock())
			k = p.granted(at)
			require.Equal(t, 19-i, l.Stats().Waiting)
		}
		require.NoError(t, k.Unlock())
		require.Len(t, strings.Fields(f.sent("acquire")), 21)
		require.Len(t, strings.Fields(f.sent("release")), 21)
	})
}

// However many calls wait in a process, one sends attempts, and one poller reads.
func TestThousandWaitersCostWhatOneCosts(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		const n = 1000
		l := f.locker()
		f.take("x", time.Minute)
		var waiters []*pending
		for range n {
			waiters = append(waiters, f.try(l, bg, "x", 12*time.Second, AutoRenew))
		}
		f.until(10*time.Second + 500*ms)
		require.Equal(t, "0s", f.sent("acquire"))
		require.Equal(t, "1s 2s 3s 4s 5s 6s 7s 8s 9s 10s", f.sent("look"))
		require.Equal(t, n, l.Stats().Waiting)

		f.free("x")
		for _, p := range waiters {
			require.NoError(t, p.granted(11*time.Second).Unlock())
		}
		require.Equal(t, fmt.Sprintf("acquire %d, look 11, release %d", n+1, n), f.counts())
		require.Zero(t, l.Stats().Waiting)
	})
}

// A waiter that gives up leaves the queue. If it had the turn, it passes it on.
func TestWaiterThatGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(rarely)
		f.take("x", time.Hour)
		ctx, cancel := context.WithCancelCause(bg)
		head := f.try(l, ctx, "x", WaitForever, AutoRenew)
		second := f.try(l, bg, "x", time.Second, AutoRenew)
		third := f.try(l, ctx, "x", WaitForever, AutoRenew)
		fourth := f.try(l, bg, "x", 5*time.Second, AutoRenew)
		fifth := f.try(l, bg, "x", WaitForever, 20*time.Second)

		second.refused(time.Second, ErrNotAcquired)
		require.Equal(t, "0s", f.sent("acquire"))
		f.until(2 * time.Second)
		enough := errors.New("enough")
		cancel(enough)
		head.refused(2*time.Second, ErrNotAcquired, enough, context.Canceled)
		third.refused(2*time.Second, ErrNotAcquired, enough, context.Canceled)
		synctest.Wait()
		require.Equal(t, "0s 2s", f.sent("acquire"), "the fourth, at once")
		fourth.refused(5*time.Second, ErrNotAcquired)
		synctest.Wait()
		require.Equal(t, "0s 2s 5s", f.sent("acquire"), "the fifth, at once")
		require.Equal(t, 1, l.Stats().Waiting)
		require.EqualValues(t, 4, l.Stats().NotAcquired)
		fifth.granted(time.Hour)
	})
}

// A waiter makes another attempt as soon as the holder's lease ends.
func TestWaiterAsksAtTheHoldersExpiry(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(rarely)
		f.take("x", 2500*ms)
		f.take("y", 1500*ms)
		x := f.try(l, bg, "x", WaitForever, AutoRenew)
		y := f.try(l, bg, "y", WaitForever, AutoRenew)
		y.granted(1501 * ms) // others may end in the same moment
		x.granted(2500 * ms)
		require.Equal(t, "acquire 4, look 1", f.counts())
	})
}

// The poller learns of a lease that was renewed: then only looks are sent.
func TestHolderThatRenewsCostsLooks(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.take("x", 5*time.Second)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		for range 10 {
			f.until(f.now() + 2500*ms)
			f.take("x", 5*time.Second)
		}
		require.Equal(t, "acquire 1, look 25", f.counts())
		p.granted(30 * time.Second)
	})
}

// All waiters of a process cost one look an interval, whatever they wait for.
func TestPollerLooksForAll(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		var waiters []*pending
		for i := range store.BatchSize + 1 {
			name := fmt.Sprint(i)
			f.take(name, time.Hour)
			waiters = append(waiters, f.try(l, bg, name, WaitForever, AutoRenew))
		}
		f.until(2500 * ms)
		require.Equal(t, fmt.Sprintf("1s*%d 1s 2s*%d 2s", store.BatchSize, store.BatchSize), f.sent("look"))
		f.free("7")
		waiters[7].granted(3 * time.Second)
		f.until(4500 * ms)
		require.True(t, strings.HasSuffix(f.sent("look"), fmt.Sprintf(" 4s*%d", store.BatchSize)))
	})
}

// The poller ends when there is nothing to look for, starts again when there is,
// and does not die of errors.
func TestPoller(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.take("x", time.Hour)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(500 * ms)
		f.free("x")
		k := p.granted(time.Second)
		f.until(9500 * ms)
		require.Equal(t, "1s", f.sent("look"))
		require.NoError(t, k.Unlock())

		f.take("x", time.Hour)
		p = f.try(l, bg, "x", 10*time.Second, AutoRenew)
		f.meet(fails(errBroken), "look")
		f.until(12 * time.Second)
		f.meet(hangs, "look")
		f.until(14 * time.Second)
		f.meet(none, "look")
		f.free("x")
		k = p.granted(14500 * ms)
		require.Equal(t, "1s 10.5s 11.5s 12.5s 13.5s 14.5s", f.sent("look"))
		require.Equal(t, "0s 1s 9.5s 14.5s", f.sent("acquire"))
		require.NoError(t, k.Unlock())
	})
}

// The waiter gets the error that the poller met.
func TestPollerErrorIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		look, acquire fault
		at            time.Duration
		errs, not     []error
	}{
		"denied":             {fails(errDenied), fails(errDenied), time.Second, []error{errDenied}, []error{ErrNotAcquired, ErrUnavailable}},
		"looks denied":       {fails(errDenied), none, 5500 * ms, []error{ErrNotAcquired}, []error{}},
		"broken":             {fails(errBroken), none, 5500 * ms, []error{ErrUnavailable, errBroken}, []error{ErrNotAcquired}},
		"broken, then not":   {first(4, fails(errBroken), none), none, 5500 * ms, []error{ErrNotAcquired}, []error{errBroken, ErrUnavailable}},
		"silent":             {hangs, none, 5500 * ms, []error{ErrUnavailable, outage.ErrNoAnswer}, []error{ErrNotAcquired, context.DeadlineExceeded}},
		"answers are lost":   {cut, none, 5500 * ms, []error{ErrUnavailable, errBroken}, []error{ErrNotAcquired}},
		"nothing the matter": {none, none, 5500 * ms, []error{ErrNotAcquired}, []error{errBroken, errDenied, ErrUnavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				f.take("x", time.Hour)
				p := f.try(l, bg, "x", 5500*ms, AutoRenew)
				f.meet(c.look, "look")
				f.meet(c.acquire, "acquire")
				p.refused(c.at, c.errs...)
				for _, err := range c.not {
					require.NotErrorIs(t, p.err, err)
				}
			})
		})
	}
}

// The wait can run out in the very moment in which the database answers.
func TestWaitThatEndsWithTheAnswer(t *testing.T) {
	for name, flt := range map[string]fault{"refused": slow(time.Second), "failed": after(time.Second, fails(errDeadlock))} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(rarely)
				f.meet(flt, "acquire")
				var waiters []*pending
				for i := range 100 {
					name := fmt.Sprint(i)
					f.take(name, time.Hour)
					waiters = append(waiters, f.try(l, bg, name, time.Second, AutoRenew))
				}
				for _, p := range waiters {
					p.refused(time.Second, ErrNotAcquired)
				}
			})
		})
	}
}

// A call that does not wait sends nothing where the lock is held, or waited for,
// in its own process.
func TestNoWaitSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(rarely)
		f.acquired(l, bg, "held", AutoRenew)
		f.take("awaited", time.Hour)
		f.try(l, bg, "awaited", WaitForever, AutoRenew)
		before := f.counts()
		for _, name := range []string{"held", "awaited"} {
			for _, wait := range []time.Duration{0, -1} {
				f.try(l, bg, name, wait, AutoRenew).refused(0, ErrNotAcquired)
			}
		}
		require.Equal(t, before, f.counts())
	})
}

// A call that does not wait stays while another's statement is under way, and
// has its own attempt if that one comes to nothing.
func TestNoWaitBehindAnAttempt(t *testing.T) {
	const d = 500 * ms
	for name, c := range map[string]struct {
		first    fault // of the attempt under way
		taken    bool  // by another process
		granted  bool  // to the call that does not wait
		at       time.Duration
		acquires string
	}{
		"granted":         {slow(d), false, false, d, "0s"},
		"refused":         {slow(d), true, false, d, "0s"},
		"denied":          {after(d, fails(errDenied)), false, true, d, "0s 500ms"},
		"denied, taken":   {after(d, fails(errDenied)), true, false, d, "0s 500ms"},
		"does not return": {hangs, false, false, noWaitTimeout, "0s"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(rarely)
				if c.taken {
					f.take("x", time.Hour)
				}
				f.meet(first(1, c.first, none), "acquire")
				f.try(l, bg, "x", WaitForever, AutoRenew)
				p := f.try(l, bg, "x", 0, AutoRenew)
				require.False(t, p.over())
				switch {
				case c.granted:
					p.granted(c.at)
				case c.at == noWaitTimeout:
					p.refused(c.at, ErrUnavailable)
				default:
					p.refused(c.at, ErrNotAcquired)
				}
				require.Equal(t, c.acquires, f.sent("acquire"))
			})
		})
	}
}

// A process that waits and shares the owner that got the lock has it too, at once.
func TestWaitersOfOneOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(rarely)
		owner := WithOwner(bg)
		f.take("x", 5*time.Second)
		head := f.try(l, owner, "x", WaitForever, AutoRenew)
		stranger := f.try(l, bg, "x", WaitForever, AutoRenew)
		second := f.try(l, owner, "x", WaitForever, time.Minute)
		third := f.try(l, owner, "x", WaitForever, AutoRenew)

		k1, k2, k3 := head.granted(5*time.Second), second.granted(5*time.Second), third.granted(5*time.Second)
		require.Equal(t, k1.Token(), k2.Token())
		require.Equal(t, k1.Token(), k3.Token())
		require.Equal(t, 1, l.Stats().Waiting)
		for _, k := range []*Lock{k3, k1, k2} {
			require.False(t, stranger.over())
			require.NoError(t, k.Unlock())
		}
		stranger.granted(5 * time.Second)
		require.Equal(t, "acquire 3, release 1", f.counts())
	})
}

// So has one that does not wait and came while its owner's attempt was under way.
func TestNoWaitBehindAnAttemptOfItsOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		owner := WithOwner(bg)
		f.meet(slow(500*ms), "acquire")
		head := f.try(l, owner, "x", WaitForever, AutoRenew)
		second := f.try(l, owner, "x", 0, AutoRenew)
		k := head.granted(500 * ms)
		require.Equal(t, k.Token(), second.granted(500*ms).Token())
	})
}

// A call returns when its context ends. A grant that its statement brings later is given back,
// and the next waiter becomes the head.
func TestAbandonedAttempt(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		fault   fault
		next    time.Duration // when the next in line has the lock
		acquire string
	}{
		"granted late":                   {late(2 * s), 2 * s, "0s 2s"},
		"granted, answered late":         {slow(2 * s), 2 * s, "0s 2s"},
		"granted, the connection broke":  {after(2*s, cut), 2 * s, ""},
		"granted, never answered":        {mute, s + detachedTimeout, ""},
		"never arrived":                  {hangs, s + detachedTimeout, "0s 3s"},
		"failed":                         {after(2*s, fails(errDenied)), 2 * s, "0s 2s"},
		"granted after the process left": {late(12 * s), s + detachedTimeout, "0s 3s"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(rarely)
				ctx, cancel := context.WithCancelCause(bg)
				f.meet(first(1, c.fault, none), "acquire")
				head := f.try(l, ctx, "x", WaitForever, AutoRenew)
				next := f.try(l, bg, "x", WaitForever, AutoRenew)
				f.until(s)
				enough := errors.New("enough")
				cancel(enough)
				head.refused(s, ErrUnavailable, enough, outage.ErrNoAnswer)
				k := next.granted(c.next)
				if c.acquire != "" {
					require.Equal(t, c.acquire, f.sent("acquire"))
				}
				require.EqualValues(t, 1, l.Stats().Acquired)
				require.Equal(t, 1, l.Stats().Held)
				f.until(time.Minute)
				require.NoError(t, k.Err())
				require.NoError(t, k.Unlock())
				f.until(2 * time.Minute)
				require.Zero(t, f.left("x"))
			})
		})
	}
}

// A call whose wait runs out leaves as one whose context ends. The statement of
// a call that waits for less than a moment gets that moment.
func TestWaitRunsOutInAnAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		fault    fault
		wait, at time.Duration
		granted  bool
	}{
		"no wait, slow":     {slow(noWaitTimeout - ms), 0, noWaitTimeout - ms, true},
		"no wait, too slow": {slow(noWaitTimeout + ms), 0, noWaitTimeout, false},
		"short, slow":       {slow(minTimeout - ms), ms, minTimeout - ms, true},
		"short, too slow":   {slow(minTimeout + probeWait), ms, minTimeout + probeWait/20, false},
		"wait, slow":        {slow(1999 * ms), 2 * time.Second, 1999 * ms, true},
		"wait, too slow":    {slow(2001 * ms), 2 * time.Second, 2 * time.Second, false},
		"late":              {late(3 * time.Second), 2 * time.Second, 2 * time.Second, false},
		"never answered":    {mute, 2 * time.Second, 2 * time.Second, false},
		"never arrives":     {hangs, 2 * time.Second, 2 * time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l, other := f.locker(rarely), f.locker()
				f.meet(first(1, c.fault, none), "acquire")
				p := f.try(l, bg, "x", c.wait, AutoRenew)
				if c.granted {
					p.granted(c.at)
					return
				}
				if c.wait == ms { // so soon, it may only be slow
					p.refused(c.at, ErrNotAcquired)
				} else {
					p.refused(c.at, ErrUnavailable)
				}
				require.ErrorContains(t, p.err, "the database did not answer in time")
				q := f.try(other, bg, "x", WaitForever, AutoRenew)
				q.wait()
				require.NoError(t, q.err)
				require.LessOrEqual(t, q.at, c.at+detachedTimeout+time.Second, "soon nothing is left of it")
			})
		})
	}
}

// While the database is fast, the first statement of a call is sent on the caller's goroutine,
// and a cancelled call waits up to cancelGrace for its reply.
func TestAttemptOnTheCallersGoroutine(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		fault      fault
		wait, ends time.Duration // of the call, and of its context; 0: not
		at, next   time.Duration // when it returns, and when another process has the lock
		counts     string        // of statements, by then
	}{
		"context, granted":      {slow(s + cancelGrace - ms), WaitForever, s, s + cancelGrace - ms, s + cancelGrace, "acquire 1, probe 1, release 1"},
		"context, refused":      {after(s+ms, func(context.Context, func()) error { return nil }), WaitForever, s, s + ms, s + cancelGrace, "acquire 1, probe 1"},
		"context, failed":       {after(s+ms, fails(errDenied)), WaitForever, s, s + ms, s + cancelGrace, "acquire 1, probe 1"},
		"context, too slow":     {slow(2 * s), WaitForever, s, s + cancelGrace, s + cancelGrace + ms, "acquire 1, probe 1, releaseAll 1"},
		"context, no answer":    {mute, WaitForever, s, s + cancelGrace, s + cancelGrace + ms, "acquire 1, probe 1, releaseAll 1"},
		"context, late":         {late(3 * s), WaitForever, s, s + cancelGrace, 9 * s, ""},
		"wait, granted":         {slow(s + cancelGrace - ms), s, 0, s + cancelGrace - ms, s + cancelGrace, "acquire 1, probe 1, release 1"},
		"wait, no answer":       {mute, s, 0, s + cancelGrace, s + cancelGrace + ms, "acquire 1, probe 1, releaseAll 1"},
		"longest wait":          {none, WaitForever - 1, 0, 0, 0, ""},
		"short wait, granted":   {slow(minTimeout - ms), ms, 0, 0, 0, ""},
		"short wait, no answer": {mute, ms, 0, minTimeout + cancelGrace + probeWait/20, minTimeout + cancelGrace + probeWait/20 + ms, "acquire 1, probe 1, releaseAll 1"},
		"no wait, granted":      {slow(noWaitTimeout - ms), 0, 0, 0, 0, ""},
		"no wait, no answer":    {mute, 0, 0, noWaitTimeout + cancelGrace, noWaitTimeout + cancelGrace + ms, "acquire 1, probe 1, releaseAll 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l, other := f.locker(rarely), f.locker(rarely)
				require.NoError(t, f.acquired(l, bg, "warm", AutoRenew).Unlock())
				f.anew()
				ctx := bg
				if c.ends > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.ends)
					defer cancel()
				}
				f.meet(first(1, c.fault, none), "acquire")
				p := f.try(l, ctx, "x", c.wait, AutoRenew)
				p.wait()
				if c.at == 0 {
					require.NoError(t, p.err)
					require.NoError(t, p.lock.Unlock())
					return
				}
				switch name {
				case "context, refused":
					p.refused(c.at, ErrNotAcquired, context.DeadlineExceeded)
				case "short wait, no answer": // so soon, it may only be slow
					p.refused(c.at, ErrNotAcquired, outage.ErrNoAnswer)
				case "context, failed":
					p.refused(c.at, errDenied)
				default:
					p.refused(c.at, ErrUnavailable, outage.ErrNoAnswer)
					require.Equal(t, c.ends > 0, errors.Is(p.err, context.DeadlineExceeded), "the caller's context")
				}
				f.until(c.next)
				if c.counts != "" {
					require.Equal(t, c.counts, f.counts())
				}
				q := f.try(other, bg, "x", 0, AutoRenew)
				q.wait()
				require.NoError(t, q.err)

				// It was slow: the next caller does not stay.
				ctx, cancel := context.WithCancel(bg)
				f.meet(mute, "acquire")
				p = f.try(l, ctx, "y", WaitForever, AutoRenew)
				f.until(10 * s)
				cancel()
				p.refused(10*s, context.Canceled)
			})
		})
	}
}

// panicky is a repository whose driver panics once.
type panicky struct {
	repository
	due atomic.Bool
}

func (p *panicky) Acquire(ctx context.Context, req store.AcquireRequest) (store.Grant, error) {
	if p.due.Swap(false) {
		panic("hook")
	}
	return p.repository.Acquire(ctx, req)
}

// A panic in the driver, from which the application recovers, leaves the turn to
// the next.
func TestPanicInTheDriver(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(rarely)
		p := &panicky{repository: l.repo}
		l.repo = p
		require.NoError(t, f.acquired(l, bg, "x", AutoRenew).Unlock())
		p.due.Store(true)
		require.PanicsWithValue(t, "hook", func() { l.Lock(bg, "x", AutoRenew) })
		require.NoError(t, f.acquired(l, bg, "x", AutoRenew).Unlock())
		require.NoError(t, l.Close())
	})
}

// A transaction has the row locked: the statement is left behind, and undone
// when it is granted, which wakes the waiters.
func TestRowLockedByATransaction(t *testing.T) {
	for name, c := range map[string]struct{ ends, granted time.Duration }{
		"a moment": {2 * time.Second, 2 * time.Second},
		"longer":   {15 * time.Second, 16 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(rarely)
				unblock := f.block("x")
				time.AfterFunc(c.ends, unblock)
				f.try(l, bg, "x", 0, AutoRenew).refused(noWaitTimeout, ErrNotAcquired)
				next := f.try(l, bg, "x", WaitForever, AutoRenew)
				next.wait()
				require.NoError(t, next.err)
				require.GreaterOrEqual(t, next.at, c.ends)
				require.LessOrEqual(t, next.at, c.granted)
				require.Equal(t, "0s "+c.ends.String(), f.sent("acquire"), "the first is not cut off, nor sent again")
				f.until(time.Minute)
				require.NoError(t, next.lock.Err())
				require.Equal(t, 1, l.Stats().Held)
			})
		})
	}
}

// An attempt whose outcome is not known is undone, by its own id, as often as it
// takes: the undo can overtake what it is to undo.
func TestUnknownOutcomeIsUndone(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, other := f.locker(rarely), f.locker(rarely)
		f.meet(first(1, overtaken(350*ms), none), "acquire")
		p := f.try(l, bg, "x", 0, AutoRenew)
		p.refused(0, errBroken)
		require.NotErrorIs(t, p.err, ErrNotAcquired)
		f.until(400 * ms)
		require.Positive(t, f.left("x"))
		next := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.try(other, bg, "x", 0, AutoRenew).refused(400*ms, ErrNotAcquired)
		k := next.granted(800 * ms)
		f.until(time.Minute)
		require.Equal(t, "0s 100ms 300ms 800ms", f.sent("releaseAll"), "it was freed: no more is sent")
		require.NoError(t, k.Err())
	})
}

// Nothing holds what was never executed. The undo ends when nothing can come of
// it any more: when a lease has passed since the database answered.
func TestUndoEnds(t *testing.T) {
	for name, c := range map[string]struct {
		undo            fault
		before, after60 int // at least, at most
	}{
		"no answer for a minute": {fails(errBroken), 60, 6},
		"denied":                 {fails(errDenied), 6, 0},
		"nothing to free":        {none, 6, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(WithLease(5 * time.Second))
				f.meet(first(1, fails(errBroken), none), "acquire")
				f.meet(c.undo, "releaseAll")
				f.try(l, bg, "x", 0, AutoRenew).refused(0, errBroken)
				f.until(time.Minute - 500*ms)
				before := len(strings.Fields(f.sent("releaseAll")))
				require.GreaterOrEqual(t, before, c.before)
				f.meet(none, "releaseAll")
				f.until(10 * time.Minute)
				require.LessOrEqual(t, len(strings.Fields(f.sent("releaseAll")))-before, c.after60)
			})
		})
	}
}

// The last try of an undo comes when the lease must be over: had the database's
// clock been set back meanwhile, it would not be.
func TestUndoTriesAtTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.meet(func(_ context.Context, serve func()) error {
			serve()
			time.AfterFunc(4900*ms, f.block("x")) // all tries but the last pass over it
			return errBroken
		}, "acquire")
		f.meet(fails(errBroken), "release") // which would wait for the row
		f.try(l, bg, "x", 0, 5*time.Second).refused(0, errBroken)
		synctest.Wait()
		f.setBack("x")
		f.until(6 * time.Second)
		require.Equal(t, "0s 100ms 300ms 800ms 1.8s 2.8s 3.8s 4.8s 5s", f.sent("releaseAll"))
		require.Zero(t, f.left("x"))
	})
}

// setBack does to the lease of a row what a clock does that is set back by an hour.
func (f *fakeRepo) setBack(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.rows[name]
	r.expires = r.expires.Add(time.Hour)
	f.rows[name] = r
}

// Nor would a short one be, of a statement that arrives late.
func TestUndoOfAShortLease(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.meet(overtaken(3*time.Second), "acquire")
		f.try(l, bg, "x", 0, 50*ms).refused(0, errBroken)
		f.until(3010 * ms)
		require.NotZero(t, f.left("x"))
		f.setBack("x")
		f.until(4 * time.Second)
		require.Zero(t, f.left("x"))
	})
}

// The undo of a lock that was held ends when the row is not its own any more.
func TestUndoEndsWithTheRow(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.meet(mute, "release")
		require.ErrorIs(t, k.Unlock(), outage.ErrNoAnswer)
		f.until(time.Minute)
		require.Equal(t, "acquire 1, look 1, owned 1, release 2, releaseAll 1", f.counts())
	})
}

// What one undo waits for does not hold up another.
func TestUndosAreServedAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.meet(first(1, fails(errBroken), none), "acquire")
		f.try(l, bg, "y", 0, AutoRenew).refused(0, errBroken)
		f.until(2 * time.Second)
		f.meet(fails(errDenied), "release")
		require.ErrorIs(t, k.Unlock(), errDenied)
		synctest.Wait()
		require.Equal(t, 2*time.Second, f.now())
		require.Zero(t, f.left("x"))
		require.Equal(t, "0s 100ms 300ms 800ms 1.8s 2s", f.sent("releaseAll"))
	})
}

// An attempt that is not answered is given up and made again.
func TestAttemptIsBounded(t *testing.T) {
	for lease, timeout := range map[time.Duration]time.Duration{
		AutoRenew:        10 * time.Second,
		6 * time.Second:  4 * time.Second,
		100 * ms:         time.Second,
		10 * time.Minute: 10 * time.Second,
	} {
		t.Run(lease.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(rarely)
				f.meet(first(1, hangs, none), "acquire")
				f.try(l, bg, "x", WaitForever, lease).granted(timeout + 10*ms)
			})
		})
	}
}

// What may pass is retried within the wait; a call that does not wait tries a few times.
func TestErrorsOfAttempts(t *testing.T) {
	const forever = 1 << 60
	for name, c := range map[string]struct {
		fault     error
		times     int64
		wait      time.Duration
		granted   bool
		at        time.Duration
		acquires  int
		errs, not []error
	}{
		"3 deadlocks":          {errDeadlock, 3, 5 * time.Second, true, 70 * ms, 4, nil, nil},
		"3 deadlocks, no wait": {errDeadlock, 3, 0, true, 70 * ms, 4, nil, nil},
		"deadlocks, no wait":   {errDeadlock, forever, 0, false, noWaitTimeout, 7, []error{errDeadlock, ErrNotAcquired}, []error{ErrUnavailable}},
		"deadlocks":            {errDeadlock, forever, time.Second, false, time.Second, 7, []error{errDeadlock, ErrNotAcquired}, []error{ErrUnavailable}},
		"3 cuts":               {errBroken, 3, 5 * time.Second, true, 70 * ms, 4, nil, nil},
		"cut, no wait":         {errBroken, 1, 0, false, 0, 1, []error{errBroken, ErrUnavailable}, []error{ErrNotAcquired}},
		"cuts":                 {errBroken, forever, 3 * time.Second, false, 3 * time.Second, 11, []error{errBroken, ErrUnavailable}, []error{ErrNotAcquired}},
		"no connection, 3":     {store.NotSent{Err: errBroken}, 3, 0, true, 70 * ms, 4, nil, nil},
		"no connection":        {store.NotSent{Err: errBroken}, forever, 0, false, 70 * ms, 4, []error{errBroken, ErrUnavailable}, []error{ErrNotAcquired}},
		"denied":               {errDenied, forever, time.Hour, false, 0, 1, []error{errDenied}, []error{ErrNotAcquired, ErrUnavailable}},
		"no autocommit":        {store.ErrAutocommit, forever, time.Hour, false, 0, 1, []error{store.ErrAutocommit}, []error{ErrNotAcquired, ErrUnavailable}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(rarely)
				f.meet(first(c.times, fails(c.fault), none), "acquire")
				p := f.try(l, bg, "x", c.wait, AutoRenew)
				if c.granted {
					p.granted(c.at)
				} else {
					p.refused(c.at, c.errs...)
					for _, err := range c.not {
						require.NotErrorIs(t, p.err, err)
					}
				}
				require.Len(t, strings.Fields(f.sent("acquire")), c.acquires)
				require.Equal(t, store.OutcomeUnknown(c.fault), f.sent("releaseAll") != "", "undone, if there may be what to undo")
			})
		})
	}
}

// An error is returned only if it is why the wait ran out.
func TestErrorThatHasPassed(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.take("x", time.Hour)
		f.meet(first(3, fails(errBroken), none), "acquire")
		p := f.try(l, bg, "x", 3500*ms, AutoRenew)
		p.refused(3500*ms, ErrNotAcquired)
		require.NotErrorIs(t, p.err, errBroken)
	})
}

// A grant whose answer takes longer than the lease is given back, and the call continues.
func TestGrantThatComesTooLate(t *testing.T) {
	for name, c := range map[string]struct {
		answer, release fault
		wait            time.Duration
		granted         bool
		at              time.Duration
	}{
		"no wait":             {slow(500 * ms), none, 0, true, 510 * ms},
		"wait":                {slow(500 * ms), none, time.Hour, true, 510 * ms},
		"executed late":       {late(500 * ms), none, time.Hour, true, 510 * ms},
		"slowly undone":       {late(500 * ms), late(100 * ms), time.Hour, true, 600 * ms},
		"the undo hangs":      {late(500 * ms), hangs, time.Hour, true, 800 * ms},
		"the undo hangs long": {late(500 * ms), hangs, 600 * ms, false, 600 * ms},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(rarely)
				f.meet(first(1, c.answer, none), "acquire")
				f.meet(c.release, "release")
				p := f.try(l, bg, "x", c.wait, 300*ms)
				if !c.granted {
					p.refused(c.at, ErrNotAcquired)
					return
				}
				k := p.granted(c.at)
				require.Equal(t, "500ms", strings.Fields(f.sent("release"))[0])
				f.requireEnd(k, c.at+270*ms, ErrLost)
			})
		})
	}
}

// Unlock frees the row even if replies are lost, and continues in the background if it cannot.
func TestUnlockThatFails(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		release, releaseAll fault
		took                time.Duration
		err                 error
		releases            int
		freed               time.Duration // before this
	}{
		"cut":                   {first(1, cut, none), none, 10 * ms, nil, 2, 10 * ms},
		"mute":                  {first(1, mute, none), none, 1510 * ms, nil, 2, 0},
		"3 deadlocks":           {first(3, fails(errDeadlock), none), none, 70 * ms, nil, 4, 70 * ms},
		"denied":                {fails(errDenied), none, 0, errDenied, 1, 0},
		"denied for a while":    {fails(errDenied), first(5, fails(errDenied), none), 0, errDenied, 1, 3 * s},
		"hangs":                 {hangs, none, 3 * s, outage.ErrNoAnswer, 2, 3 * s},
		"hangs for a while":     {hangs, first(3, hangs, none), 3 * s, outage.ErrNoAnswer, 2, 20 * s},
		"broken for a while":    {fails(errBroken), first(5, fails(errBroken), none), 2630 * ms, errBroken, 11, 6 * s},
		"answers are not heard": {mute, mute, 3 * s, outage.ErrNoAnswer, 2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(rarely)
				k := f.acquired(l, bg, "x", time.Hour)
				next := f.try(l, bg, "x", WaitForever, AutoRenew)
				f.meet(c.release, "release")
				f.meet(c.releaseAll, "releaseAll")
				err := k.Unlock()
				require.ErrorIs(t, err, c.err)
				require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller set no time limit")
				require.Equal(t, c.took, f.now())
				require.Len(t, strings.Fields(f.sent("release")), c.releases)
				require.ErrorIs(t, k.Unlock(), ErrNotHeld)
				next.wait()
				require.NoError(t, next.err)
				require.LessOrEqual(t, next.at, max(c.freed, c.took))
				f.until(time.Minute)
				require.NoError(t, next.lock.Err(), "what goes on in the background frees nobody else's row")
			})
		})
	}
}

// The background retries until the lease has ended, which may be long.
func TestUnlockBehindALongTransaction(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(rarely)
		k := f.acquired(l, bg, "x", time.Hour)
		unblock := f.block("x")
		f.meet(fails(errDenied), "release") // it never got to wait for the row
		require.ErrorIs(t, k.Unlock(), errDenied)
		f.until(5 * time.Minute)
		require.Positive(t, f.left("x"))
		unblock()
		f.until(5*time.Minute + 5*time.Second)
		require.Zero(t, f.left("x"))
	})
}

// Unlock reports a lease that was taken away, and frees no other acquisition.
func TestUnlockOfARowTakenAway(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.take("x", time.Hour)
		require.ErrorIs(t, k.Unlock(), ErrLost)
		require.ErrorIs(t, k.Unlock(), ErrNotHeld)
		require.Equal(t, time.Hour, f.left("x"))
		require.Equal(t, "acquire 1, owned 1, release 1", f.counts())
		require.EqualValues(t, 1, l.Stats().Lost)
	})
}

// Close ends every call that waits, wherever it is.
func TestCloseEndsWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.take("asleep", time.Hour)
		f.meet(fails(errBroken), "acquire")
		var waiters []*pending
		try := func(name string, wait time.Duration) {
			waiters = append(waiters, f.try(l, bg, name, wait, AutoRenew))
		}
		try("retrying", WaitForever)
		f.meet(none, "acquire")
		try("asleep", WaitForever)
		try("asleep", time.Minute)
		f.meet(late(500*ms), "acquire")
		try("asking", WaitForever)
		try("asking", time.Minute)
		try("asking", 0)
		require.NoError(t, l.Close())
		require.Equal(t, 500*ms, f.now(), "the statement under way was answered, and undone")
		for i, p := range waiters {
			if i == 3 {
				p.refused(500*ms, ErrClosed)
			} else {
				p.refused(0, ErrClosed)
			}
		}
		require.Zero(t, f.left("asking"))
		require.Zero(t, l.Stats().Waiting)

		before := f.counts()
		f.try(l, bg, "x", WaitForever, AutoRenew).refused(500*ms, ErrClosed)
		require.NoError(t, l.Close())
		time.Sleep(time.Hour)
		require.Equal(t, before, f.counts())
	})
}

// A call that uses the context of a lock ends with ErrClosed as well: it is Close that ends this
// context, and no other owner held what the call asked for.
func TestCloseEndsWaitsUnderALock(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "held", AutoRenew)
		f.take("asleep", time.Hour)
		var waiters []*pending
		for _, name := range []string{"asleep", "asleep", "asking", "asking"} {
			f.meet(late(ms), "acquire")
			waiters = append(waiters, f.try(l, k.Context(), name, WaitForever, AutoRenew))
		}
		require.NoError(t, l.Close())
		for range 20 {
			waiters = append(waiters, f.try(l, k.Context(), "x", 0, AutoRenew))
		}
		for _, p := range waiters {
			p.wait()
			require.ErrorIs(t, p.err, ErrClosed)
			require.NotErrorIs(t, p.err, ErrNotAcquired)
		}
	})
}

// Close releases in batches, and ends every context.
func TestCloseReleases(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		owner := WithOwner(bg)
		var locks []*Lock
		for i := range 2*store.BatchSize + 1 {
			locks = append(locks, f.acquired(l, owner, fmt.Sprint(i), AutoRenew))
		}
		locks = append(locks, f.acquired(l, owner, "0", time.Minute))
		f.until(time.Second)
		require.NoError(t, l.Close())
		require.Equal(t, time.Second, f.now())
		require.Len(t, strings.Fields(f.sent("releaseAll")), 3)
		require.Empty(t, f.sent("release"))
		for _, k := range locks {
			f.requireEnd(k, time.Second, ErrClosed)
			require.ErrorIs(t, k.Extend(bg, time.Minute), ErrClosed)
			require.ErrorIs(t, k.Unlock(), ErrClosed)
			require.Zero(t, f.left(k.Name()))
		}
		_, err := l.TryLock(owner, "0", 0, AutoRenew)
		require.ErrorIs(t, err, ErrClosed)
		require.Zero(t, l.Stats().Held)
		require.EqualValues(t, 2*store.BatchSize+1, l.Stats().Released)
	})
}

// Close does its best within its bound, whatever the database does.
func TestCloseIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		release fault
		block   bool
		want    error
		at      time.Duration
	}{
		"hangs":             {hangs, false, outage.ErrNoAnswer, 10 * time.Second},
		"broken":            {fails(errBroken), false, errBroken, 10 * time.Second},
		"hangs for a while": {first(2, hangs, none), false, nil, 4 * time.Second},
		"answers get lost":  {first(2, mute, none), false, nil, 4 * time.Second},
		"row locked":        {none, true, nil, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				for i := range 3 {
					f.acquired(l, bg, fmt.Sprint(i), AutoRenew)
				}
				if c.block {
					unblock := f.block("1")
					time.AfterFunc(2*time.Second, unblock)
				}
				f.meet(c.release, "releaseAll")
				err := l.Close()
				require.LessOrEqual(t, f.now(), c.at)
				require.ErrorIs(t, err, c.want)
				require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller set no time limit")
				require.Equal(t, err, l.Close(), "further calls return the same")
				for i := range 3 {
					require.Equal(t, c.want == nil, f.left(fmt.Sprint(i)) == 0, i)
				}
			})
		})
	}
}

// The worst case: nothing that is sent is answered, at whatever stage.
func TestCloseWhenAllHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(WithNotifier(&bus{hang: true}))
		f.take("watched", time.Hour)
		for i := range 3 {
			f.acquired(l, bg, fmt.Sprint(i), AutoRenew)
		}
		k := f.acquired(l, bg, "unlocked", AutoRenew)
		f.try(l, bg, "watched", WaitForever, AutoRenew)
		f.meet(hangs, "acquire", "renew", "look", "release", "releaseAll", "extend")
		f.try(l, bg, "y", WaitForever, AutoRenew)
		go k.Unlock()
		f.until(10500 * ms)
		require.Error(t, l.Close())
		require.LessOrEqual(t, f.now(), 20500*ms)
	})
}

// An attempt that is not answered in time is undone nevertheless. Close returns an error if it
// cannot make sure of that.
func TestCloseUndoesAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		fault fault
		told  bool
	}{
		"executed":      {mute, false},
		"no answer":     {hangs, true},
		"never arrived": {fails(store.NotSent{Err: errBroken}), false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				f.meet(c.fault, "acquire")
				p := f.try(l, bg, "x", WaitForever, AutoRenew)
				err := l.Close()
				if c.told {
					require.Error(t, err)
				}
				require.LessOrEqual(t, f.now(), time.Second)
				require.Zero(t, f.left("x"))
				p.refused(0, ErrClosed)
			})
		})
	}
}

// Close makes another attempt at each pending release.
func TestCloseDrainsPendingReleases(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := &bus{}
		l, other := f.locker(WithNotifier(b)), f.locker(rarely, WithNotifier(b))
		k := f.acquired(l, bg, "x", AutoRenew)
		next := f.try(other, bg, "x", WaitForever, AutoRenew)
		f.meet(fails(errDenied), "release", "releaseAll")
		require.ErrorIs(t, k.Unlock(), errDenied)
		f.until(10 * time.Second)
		f.meet(none, "releaseAll")
		f.until(10*time.Second + ms)
		require.NoError(t, l.Close())
		next.granted(10*time.Second + ms)
	})
}

// It does so on another connection if the first is dead.
func TestCloseRetriesAReleaseThatHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		unblock := f.block("x")
		f.meet(fails(errDenied), "release")
		require.ErrorIs(t, k.Unlock(), errDenied)
		synctest.Wait()
		unblock()
		f.meet(first(1, hangs, none), "releaseAll")
		require.NoError(t, l.Close())
		require.Equal(t, closeTimeout/3+10*ms, f.now())
		require.Zero(t, f.left("x"))
	})
}

// Close also drains the release of a row that a transaction has locked, if that ends in time;
// otherwise it returns an error.
func TestCloseDrainsReleasesOfLockedRows(t *testing.T) {
	for name, c := range map[string]struct {
		locked, closed time.Duration
	}{
		"in time": {time.Second, 1270 * ms},
		"never":   {time.Hour, closeTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				k := f.acquired(l, bg, "x", AutoRenew)
				time.AfterFunc(c.locked, f.block("x"))
				f.meet(fails(errDenied), "release")
				require.ErrorIs(t, k.Unlock(), errDenied)
				err := l.Close()
				require.Equal(t, c.closed, f.now())
				if c.locked < closeTimeout {
					require.NoError(t, err)
					require.Zero(t, f.left("x"))
				} else {
					require.ErrorContains(t, err, `1 not released, the first "x": a transaction has the row locked`)
				}
			})
		})
	}
}

// During a switchover, the server refuses all writes until the pool has connections to the new primary.
// Close and the Unlock of a set wait for that.
func TestReleaseDuringASwitchover(t *testing.T) {
	for name, err := range map[string]error{
		"option":    &mysql.MySQLError{Number: 1290, Message: "The server is running with the --read-only option"},
		"mode":      &mysql.MySQLError{Number: 1836, Message: "Running in read-only mode"},
		"read-only": store.ErrDemoted,
	} {
		for op, release := range map[string]func(l *Locker, s *LockSet) error{
			"Close":  func(l *Locker, _ *LockSet) error { return l.Close() },
			"Unlock": func(_ *Locker, s *LockSet) error { return s.Unlock() },
		} {
			t.Run(name+"/"+op, func(t *testing.T) {
				inBubble(t, func(t *testing.T, f *fakeRepo) {
					l := f.locker()
					s, tryErr := l.TryLockAll(bg, []string{"x", "y"}, 0, AutoRenew)
					require.NoError(t, tryErr)
					f.meet(fails(err), "releaseAll")
					time.AfterFunc(500*ms, func() { f.meet(none, "releaseAll") })
					require.NoError(t, release(l, s))
					require.Equal(t, 630*ms, f.now())
					require.Zero(t, f.left("x")+f.left("y"))
				})
			})
		}
	}
}

// bus is a message queue within the test.
type bus struct {
	failures int  // calls of Subscribe that fail
	hang     bool // Publish does
	takes    time.Duration

	mu          sync.Mutex // guards the following
	subscribers []func(name string)
	calls       []time.Time // of Subscribe
	published   []string
}

func (b *bus) Publish(ctx context.Context, name string) error {
	if b.hang {
		return hangs(ctx, nil)
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(b.takes):
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.published = append(b.published, name)
	for _, released := range b.subscribers {
		released(name)
	}
	return nil
}

func (b *bus) Subscribe(ctx context.Context, released func(name string)) error {
	b.mu.Lock()
	b.calls = append(b.calls, time.Now())
	if len(b.calls) <= b.failures {
		b.mu.Unlock()
		return errBroken
	}
	b.subscribers = append(b.subscribers, released)
	b.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

// A release in one process wakes the waiter in another, however it came about.
func TestNotifierWakesOtherProcesses(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		release func(f *fakeRepo, k *Lock)
		at      time.Duration
	}{
		"Unlock": {func(_ *fakeRepo, k *Lock) { k.Unlock() }, s + 5*ms},
		"Close":  {func(_ *fakeRepo, k *Lock) { k.locker.Close() }, s + 5*ms},
		"in the background": {func(f *fakeRepo, k *Lock) {
			f.meet(fails(errDenied), "release")
			f.meet(first(1, fails(errDenied), none), "releaseAll")
			k.Unlock()
		}, s + 105*ms},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				b := &bus{takes: 5 * ms}
				l, other := f.locker(rarely, WithNotifier(b)), f.locker(rarely, WithNotifier(b))
				k := f.acquired(l, bg, "x", time.Hour)
				p := f.try(other, bg, "x", 30*time.Minute, AutoRenew)
				q := f.try(other, bg, "x", 30*time.Minute, AutoRenew)
				f.until(s)
				c.release(f, k)
				p.granted(c.at)
				require.False(t, q.over(), "one is woken, not all")
			})
		})
	}
}

// A message that arrives while the waiter's statement is in flight makes it try again: the
// statement may have seen the row before it was freed.
func TestNotificationDuringAnAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := &bus{}
		l := f.locker(rarely, WithNotifier(b))
		f.take("x", 6*time.Hour)
		p := f.try(l, bg, "x", 30*time.Minute, AutoRenew)
		f.meet(first(1, slow(time.Second), none), "acquire")
		f.until(time.Second)
		require.NoError(t, b.Publish(bg, "y"))
		require.NoError(t, b.Publish(bg, "x"))
		f.until(1500 * ms)
		f.free("x")
		require.NoError(t, b.Publish(bg, "x"))
		p.granted(2 * time.Second)
		require.Equal(t, "0s 1s 2s", f.sent("acquire"))
	})
}

// A message that arrives before the waiter's next statement costs none of its own, and the
// poller does not read for a waiter that was woken.
func TestNotificationBeforeAnAttempt(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := &bus{}
		l := f.locker(WithNotifier(b))
		f.take("x", time.Hour)
		p := f.try(l, bg, "x", time.Minute, AutoRenew)
		f.meet(first(1, fails(errDeadlock), none), "acquire")
		f.until(100 * ms)
		require.NoError(t, b.Publish(bg, "x"))
		f.until(105 * ms)
		require.NoError(t, b.Publish(bg, "x"))
		f.until(200 * ms)
		require.Equal(t, "0s 100ms 110ms", f.sent("acquire"))
		f.free("x")
		require.NoError(t, b.Publish(bg, "x"))
		p.granted(200 * ms)
		f.until(5 * time.Second)
		require.Empty(t, f.sent("look"))
	})
}

// Each false message costs one statement, no more.
func TestFalseNotifications(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := &bus{}
		l := f.locker(rarely, WithNotifier(b))
		f.take("x", time.Hour)
		f.acquired(l, bg, "held", AutoRenew)
		p := f.try(l, bg, "x", 5*time.Second, AutoRenew)
		for range 3 {
			f.until(f.now() + time.Second)
			require.NoError(t, b.Publish(bg, "x"))
			require.NoError(t, b.Publish(bg, "held"))
			require.NoError(t, b.Publish(bg, "unheard of"))
		}
		p.refused(5*time.Second, ErrNotAcquired)
		require.Equal(t, "0s 0s 1s 2s 3s", f.sent("acquire"))
	})
}

// Subscribe is called again after a second, and not before it is needed.
func TestSubscribeThatFails(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := &bus{failures: 3}
		l := f.locker(rarely, WithNotifier(b))
		f.acquired(l, bg, "held", AutoRenew)
		f.until(time.Second)
		require.Empty(t, b.calls)
		f.take("x", 6*time.Hour)
		p := f.try(l, bg, "x", 30*time.Minute, AutoRenew)
		f.until(5 * time.Second)
		require.Len(t, b.calls, 4)
		for i, call := range b.calls {
			require.Equal(t, time.Duration(i+1)*time.Second, call.Sub(f.born))
		}
		f.free("x")
		require.NoError(t, b.Publish(bg, "x"))
		p.granted(5 * time.Second)
	})
}

// A queue that does not take its messages holds up no Unlock.
func TestPublishThatHangs(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		b := &bus{hang: true}
		l := f.locker(rarely, WithNotifier(b))
		for range 1000 {
			require.NoError(t, f.acquired(l, bg, "x", AutoRenew).Unlock())
		}
		require.Zero(t, f.now())
		require.NoError(t, l.Close())
		require.LessOrEqual(t, f.now(), 10*time.Second)
	})
}

// A process that is restored from an image of its memory has the process id of the
// original, which keeps running, and everything else that a process remembers. Each has its own
// acquisitions nevertheless.
func TestRestoredProcess(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		me := store.NewProcess()
		start := func() *Locker {
			l := newLocker(side{f, me}, me, config{lease: DefaultLease, poll: time.Second, log: slog.New(slog.DiscardHandler)})
			t.Cleanup(func() { l.Close() })
			return l
		}
		original, restored := start(), start()
		for _, name := range []string{"x", "y", "z"} {
			k := f.acquired(original, bg, name, AutoRenew)
			f.try(restored, bg, name, 0, AutoRenew).refused(0, ErrNotAcquired)
			require.NoError(t, k.Err())
		}
	})
}

func BenchmarkNewOwnerID(b *testing.B) {
	me := store.NewProcess()
	for b.Loop() {
		store.NewOwnerID(me)
	}
}
