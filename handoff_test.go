package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// handedOver returns the handles of a lock that one holder handed over to the next, at the
// present time and without a statement.
func (f *fakeRepo) handedOver(l *Locker, name string, from, to time.Duration) (old, k *Lock) {
	f.t.Helper()
	old = f.acquired(l, bg, name, from)
	p := f.try(l, bg, name, WaitForever, to)
	before := f.counts()
	require.NoError(f.t, old.Unlock())
	k = p.granted(f.now())
	synctest.Wait()
	require.Equal(f.t, before, f.counts())
	require.Equal(f.t, old.Token()+1, k.Token())
	return old, k
}

// An Unlock passes the lock on to the next waiter of the process, first come,
// first served: at once, with the next token and without a statement.
func TestHandoffSendsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		k := f.acquired(l, bg, "x", AutoRenew)
		var waiters []*pending
		for range 100 {
			waiters = append(waiters, f.try(l, bg, "x", WaitForever, AutoRenew))
		}
		for i, p := range waiters {
			require.False(t, p.over())
			require.NoError(t, k.Unlock())
			next := p.granted(0)
			require.Equal(t, k.Token()+1, next.Token())
			require.Equal(t, ErrNotHeld, k.Err())
			require.Equal(t, ErrNotHeld, context.Cause(k.Context()))
			require.NoError(t, next.Err())
			require.NoError(t, next.Context().Err())
			require.Equal(t, Stats{Held: 1, Waiting: 99 - i, Acquired: int64(i + 2), Released: int64(i + 1)}, l.Stats())
			k = next
		}
		require.Equal(t, "acquire 1", f.counts())
		require.NoError(t, k.Unlock())
		require.Equal(t, "acquire 1, release 1", f.counts())
		require.Zero(t, f.left("x"))
		require.Equal(t, Stats{Acquired: 101, Released: 101}, l.Stats())
	})
}

// Without handoff each holder takes the row anew.
func TestWithoutHandoff(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		require.NoError(t, k.Unlock())
		require.Equal(t, k.Token()+store.TokenRange, p.granted(0).Token())
		require.Equal(t, "acquire 2, release 1", f.counts())
	})
}

// A grant covers a range of tokens. When that is used up, one statement replaces
// it; the row is never free.
func TestHandoffUsesUpItsTokens(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		k := f.acquired(l, bg, "x", AutoRenew)
		first := k.Token()
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		for i := range 3 * store.TokenRange {
			next := f.try(l, bg, "x", WaitForever, AutoRenew)
			require.Equal(t, first+uint64(i), k.Token(), "the ranges follow each other: nobody else had one")
			require.Equal(t, fmt.Sprint("acquire ", 1+i/store.TokenRange), f.counts())
			require.NoError(t, k.Unlock())
			k = p.granted(0)
			p = next
			require.Positive(t, f.left("x"))
		}
		f.until(15 * time.Second)
		require.Equal(t, "10s", f.sent("renew"), "what was replaced is not kept")
	})
}

// A range of tokens goes on only while the lease of the row that it replaces runs: after that, another
// process may have had the lock, and a failover may have undone its grant.
func TestTokensAfterALateReplacement(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		k := f.acquired(l, bg, "x", 20*ms)
		first := k.Token()
		for range store.TokenRange - 1 {
			p := f.try(l, bg, "x", WaitForever, 20*ms)
			require.NoError(t, k.Unlock())
			k = p.granted(0)
		}
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		replicated := f.row("x")
		f.meet(late(100*ms), "acquire")
		require.NoError(t, k.Unlock()) // the next needs a statement
		f.until(50 * ms)
		require.Zero(t, f.left("x"))
		var theirs uint64
		f.alter(func() {
			f.tokens += store.TokenRange
			theirs = f.tokens
			f.rows["x"] = replicated
		})
		require.Equal(t, first+store.TokenRange, theirs, "the next token")
		require.Greater(t, p.granted(100*ms).Token(), theirs)
	})
}

// The tokens of a busy lock rise one by one for few grants: one that replaces the process's own covers
// the tokens that the clock has passed since.
func TestTokensOfABusyLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := fakestore.NewTable()
		self, another := store.NewProcess(), store.NewProcess()
		repo := &grantCounter{Store: table.NewStore(self)}
		l, other := onStore(t, self, repo), onStore(t, another, table.NewStore(another))
		k, err := l.Lock(bg, "x", AutoRenew)
		require.NoError(t, err)
		last, turns := k.Token(), 1
		waiters := make(chan *Lock)
		for range 2 {
			go func() {
				for range 3000 {
					k, err := l.Lock(bg, "x", AutoRenew)
					assert.NoError(t, err)
					waiters <- k
				}
			}()
		}
		for ; turns <= 6000; turns++ {
			synctest.Wait()
			time.Sleep(4 * time.Microsecond)
			require.NoError(t, k.Unlock())
			k = <-waiters
			require.Equal(t, last+1, k.Token())
			last++
		}
		require.LessOrEqual(t, repo.grants.Load(), int64(8))
		require.NoError(t, k.Unlock())
		k, err = other.TryLock(bg, "x", time.Second, AutoRenew)
		require.NoError(t, err)
		require.Greater(t, k.Token(), last)
	})
}

// A grantCounter is a store that counts grants.
type grantCounter struct {
	*fakestore.Store
	grants atomic.Int64
}

func (s *grantCounter) Acquire(ctx context.Context, req store.AcquireRequest) (store.Grant, error) {
	g, err := s.Store.Acquire(ctx, req)
	if g.Token > 0 {
		s.grants.Add(1)
	}
	return g, err
}

// After 100 ms of handoffs, other processes have a chance: the lock is released, and acquired
// again.
func TestHandoffIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		times  []time.Duration // of the Unlocks
		counts string
		token  uint64 // since the first
	}{
		"within":           {[]time.Duration{9 * time.Second, 9100 * ms}, "acquire 1, confirm 2", 2},
		"beyond":           {[]time.Duration{9 * time.Second, 9101 * ms}, "acquire 2, confirm 1, release 1", store.TokenRange},
		"since the first":  {[]time.Duration{ms, 60 * ms, 102 * ms}, "acquire 2, confirm 1, release 1", store.TokenRange},
		"counts anew then": {[]time.Duration{ms, 102 * ms, 150 * ms, 250 * ms}, "acquire 2, confirm 2, release 1", store.TokenRange + 2},
		"and ends again":   {[]time.Duration{ms, 102 * ms, 150 * ms, 251 * ms}, "acquire 3, confirm 1, release 2", 2 * store.TokenRange},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				k := f.acquired(l, bg, "x", AutoRenew)
				first := k.Token()
				var waiters []*pending
				for range c.times {
					waiters = append(waiters, f.try(l, bg, "x", WaitForever, AutoRenew))
				}
				for i, at := range c.times {
					f.until(at)
					require.NoError(t, k.Unlock())
					k = waiters[i].granted(at)
				}
				require.Equal(t, c.counts, f.counts())
				require.Equal(t, c.token, k.Token()-first)
			})
		})
	}
}

// A range that is used up does not prolong the 100 ms.
func TestHandoffIsBoundedAcrossRanges(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		k := f.acquired(l, bg, "x", AutoRenew)
		for i := range store.TokenRange + 10 {
			p := f.try(l, bg, "x", WaitForever, AutoRenew)
			if i == store.TokenRange-1 {
				f.until(60 * ms)
			}
			require.NoError(t, k.Unlock())
			k = p.granted(f.now())
		}
		require.Equal(t, "acquire 2, confirm 1", f.counts())
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(101 * ms)
		require.NoError(t, k.Unlock())
		p.granted(101 * ms)
		require.Equal(t, "acquire 3, confirm 1, release 1", f.counts())
	})
}

// Two processes that always want a lock alternate every 100 ms.
func TestHandoffBetweenProcesses(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		ctx, cancel := context.WithTimeout(bg, 10*time.Second)
		defer cancel()
		var held [2]time.Duration
		var turns, changes int
		last := -1
		ends := make(chan struct{})
		for i := range held {
			l := f.locker(withSignal, withHandoff, rarely)
			for range 16 {
				go func() {
					defer func() { ends <- struct{}{} }()
					for ctx.Err() == nil {
						k, err := l.Lock(ctx, "x", AutoRenew)
						if err != nil {
							return
						}
						if turns++; last != i {
							last = i
							changes++
						}
						time.Sleep(ms)
						held[i] += ms
						assert.NoError(t, k.Unlock())
					}
				}()
			}
		}
		for range 32 {
			<-ends
		}
		require.InDelta(t, 10000, turns, 10, "the lock is never idle")
		require.InDelta(t, 98, changes, 3)
		require.InDelta(t, 5*time.Second, held[0], float64(150*ms))
	})
}

// A lease is handed over without a statement, unless the row does not cover what the next
// holder requests.
func TestHandoffOfLeases(t *testing.T) {
	const s, long = time.Second, 15 * time.Minute
	for name, c := range map[string]struct {
		from   time.Duration
		at     time.Duration // of the Unlock
		to     time.Duration
		counts string
		until  time.Duration // the end of the next one's trust; 0: none
		freed  time.Duration // when the row is free
	}{
		"AutoRenew to AutoRenew":         {AutoRenew, 5 * s, AutoRenew, "", 0, 0},
		"AutoRenew to short":             {AutoRenew, 5 * s, 10 * s, "", 14 * s, 15 * s},
		"AutoRenew to just covered":      {AutoRenew, 5 * s, 25 * s, "", 29 * s, 30 * s},
		"AutoRenew to not covered":       {AutoRenew, 5 * s, 25*s + ms, "acquire 1", 5*s + 24*s + ms, 5*s + 25*s + ms},
		"AutoRenew to very short":        {AutoRenew, 5 * s, 10 * ms, "", 5*s + 9*ms, 5*s + 10*ms},
		"fixed to covered":               {20 * s, 5 * s, 5 * s, "", 9500 * ms, 10 * s},
		"fixed to just covered":          {20 * s, 5 * s, 15 * s, "", 19 * s, 20 * s},
		"fixed to not covered":           {20 * s, 5 * s, 15*s + ms, "acquire 1", 19*s + ms, 20*s + ms},
		"fixed to AutoRenew":             {time.Hour, 5 * s, AutoRenew, "acquire 1", 0, 0},
		"short to longer, near its end":  {s, 899 * ms, s, "acquire 1", 1799 * ms, 1899 * ms},
		"short to shorter, near its end": {s, 700 * ms, 200 * ms, "", 880 * ms, 900 * ms},
		"long to nearly an hour":         {long, 5 * s, long - 5*s, "", long - s, long},
		// Other processes would wait this long if the process died.
		"long to a little less": {long, 5 * s, long - 5*s - ms, "acquire 1", long - s - ms, long - ms},
		"long to short":         {long, 5 * s, s, "acquire 1", 5900 * ms, 6 * s},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				old := f.acquired(l, bg, "x", c.from)
				p := f.try(l, bg, "x", WaitForever, c.to)
				f.until(c.at)
				f.anew()
				require.NoError(t, old.Unlock())
				k := p.granted(c.at)
				synctest.Wait()
				require.Equal(t, strings.TrimPrefix(c.counts+", confirm 1", ", "), f.counts())
				if c.counts == "" {
					require.Equal(t, old.Token()+1, k.Token())
				} else {
					require.Equal(t, old.Token()+store.TokenRange, k.Token())
				}
				if c.until == 0 {
					f.until(time.Hour)
					require.NoError(t, k.Err())
					require.NoError(t, k.Unlock())
					require.Zero(t, f.left("x"))
					f.anew()
					f.until(2 * time.Hour)
					require.Empty(t, f.counts(), "renewals end with the lock")
					return
				}
				f.requireEnd(k, c.until, ErrLost)
				require.Positive(t, f.left("x"))
				f.until(c.freed)
				require.Zero(t, f.left("x"))
				require.EqualValues(t, 1, l.Stats().Lost)
				require.ErrorIs(t, k.Unlock(), ErrLost)
				require.Equal(t, ErrNotHeld, old.Err())
			})
		})
	}
}

// A lease that is handed over is as long as one that the database grants, though the
// row's own margin is wider.
func TestHandoffNearTheEndOfALease(t *testing.T) {
	for lease, at := range map[time.Duration]time.Duration{time.Second: 28500 * ms, 900 * ms: 28950 * ms, 10 * ms: 28995 * ms} {
		t.Run(lease.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				old := f.acquired(l, bg, "x", 30*time.Second) // trusted for 29 s
				p := f.try(l, bg, "x", WaitForever, lease)
				f.until(at)
				require.NoError(t, old.Unlock())
				f.requireEnd(p.granted(at), at+lease*9/10, ErrLost)
			})
		})
	}
}

// A lease that could not be renewed for a while is not handed over as an AutoRenew lease.
func TestHandoffOfALeaseThatWasNotRenewed(t *testing.T) {
	for name, c := range map[string]struct {
		at     time.Duration
		counts string
	}{
		"a third left": {19 * time.Second, "confirm 1"},
		"less":         {19001 * ms, "acquire 1, confirm 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				old := f.acquired(l, bg, "x", AutoRenew)
				p := f.try(l, bg, "x", WaitForever, AutoRenew)
				f.meet(fails(errDenied), "renew")
				f.until(c.at)
				f.anew()
				f.meet(none, "renew")
				require.NoError(t, old.Unlock())
				k := p.granted(c.at)
				require.Equal(t, c.counts, strings.Split(f.counts(), "renew")[0])
				f.until(time.Hour)
				require.NoError(t, k.Err())
			})
		})
	}
}

// The renewals of a lock continue across handoffs, without a gap, and end with its last
// holder.
func TestRenewalsGoOnAcrossHandoffs(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		old := f.acquired(l, bg, "x", AutoRenew)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		third := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(9950 * ms)
		require.NoError(t, old.Unlock())
		k := p.granted(9950 * ms)
		f.until(10050 * ms)
		require.NoError(t, k.Unlock())
		k = third.granted(10050 * ms)
		f.until(35 * time.Second)
		require.Equal(t, "10s 20s 30s", f.sent("renew"))
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
		require.Zero(t, f.left("x"))
		f.until(2 * time.Minute)
		require.Equal(t, "acquire 1, begin 1, confirm 2, release 1, renew 3", f.counts())
	})
}

// A renewal in flight during a handoff counts for the next holder.
func TestRenewalDuringAHandoff(t *testing.T) {
	for name, c := range map[string]struct {
		flt   fault
		to    time.Duration
		renew string
		until time.Duration // end of trust; 0: none
	}{
		"answered":             {slow(100 * ms), AutoRenew, "10s 20s 30s", 0},
		"fails":                {after(100*ms, fails(errDenied)), AutoRenew, "10s 11.1s 20s 30s", 0},
		"lost":                 {mute, AutoRenew, "10s 16s 20s 30s", 0},
		"answered, to a fixed": {slow(100 * ms), 15 * time.Second, "10s", 10050*ms + 14*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				old := f.acquired(l, bg, "x", AutoRenew)
				p := f.try(l, bg, "x", WaitForever, c.to)
				f.meet(nth(1, c.flt), "renew")
				f.until(10050 * ms)
				require.NoError(t, old.Unlock())
				k := p.granted(10050 * ms)
				require.Equal(t, "acquire 1, begin 1, confirm 1, renew 1", f.counts())
				if c.until > 0 {
					f.requireEnd(k, c.until, ErrLost)
					f.until(c.until + time.Second)
					require.Zero(t, f.left("x"))
					require.Equal(t, c.renew, f.sent("renew"))
					return
				}
				f.until(35 * time.Second)
				require.Equal(t, c.renew, f.sent("renew"))
				require.NoError(t, k.Err())
			})
		})
	}
}

// The loss of a lock after a handoff is reported to its holder, in time, and never to the
// previous one.
func TestLossAfterAHandoff(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		befall func(f *fakeRepo)
		at     time.Duration
	}{
		"renewals fail":        {func(f *fakeRepo) { f.meet(fails(errBroken), "renew") }, 29 * s},
		"nothing is answered":  {func(f *fakeRepo) { f.meet(hangs, "renew", "look") }, 29 * s},
		"taken away":           {func(f *fakeRepo) { f.take("x", time.Hour) }, 10 * s},
		"deleted":              {func(f *fakeRepo) { f.remove("x") }, 10 * s},
		"taken, renewals fail": {func(f *fakeRepo) { f.take("x", time.Hour); f.meet(fails(errBroken), "renew") }, 29 * s},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff, rarely)
				f.until(5 * s)
				old, k := f.handedOver(l, "x", AutoRenew, AutoRenew)
				next := f.try(l, bg, "x", WaitForever, AutoRenew)
				c.befall(f)
				f.requireEnd(k, 5*s+c.at, ErrLost)
				require.Equal(t, ErrNotHeld, old.Err())
				require.Equal(t, ErrNotHeld, context.Cause(old.Context()))
				require.ErrorIs(t, old.Unlock(), ErrNotHeld)
				require.ErrorIs(t, k.Unlock(), ErrLost)
				require.EqualValues(t, 1, l.Stats().Lost)
				require.EqualValues(t, 1, l.Stats().Released)
				f.meet(none, "renew", "look")
				next.wait()
				require.NoError(t, next.err)
				require.Greater(t, next.lock.Token(), k.Token())
			})
		})
	}
}

// A fixed lease that was handed over is extended and re-entered like any other.
func TestLeasesOfAHandedOverLock(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		change   func(t *testing.T, k *Lock) // at 2 s
		until    time.Duration
		freed    time.Duration
		extended string
	}{
		"nothing":                    {func(*testing.T, *Lock) {}, 4500 * ms, 5 * s, ""},
		"extended":                   {func(t *testing.T, k *Lock) { require.NoError(t, k.Extend(bg, 10*s)) }, 11 * s, 12 * s, "2s"},
		"extended beyond":            {func(t *testing.T, k *Lock) { require.NoError(t, k.Extend(bg, 60*s)) }, 61 * s, 62 * s, "2s"},
		"extended by less":           {func(t *testing.T, k *Lock) { require.NoError(t, k.Extend(bg, s)) }, 4500 * ms, 5 * s, "2s"},
		"re-entered, fixed":          {reentered(8*s, false), 9200 * ms, 10 * s, ""},
		"re-entered, AutoRenew":      {reentered(AutoRenew, true), 4500 * ms, 5 * s, ""},
		"re-entered, shorter, ended": {reentered(s, true), 4500 * ms, 5 * s, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				_, k := f.handedOver(l, "x", AutoRenew, 5*s)
				f.until(2 * s)
				c.change(t, k)
				f.requireEnd(k, c.until, ErrLost)
				f.until(c.freed - ms)
				require.Positive(t, f.left("x"))
				f.until(c.freed)
				require.Zero(t, f.left("x"))
				require.Equal(t, c.extended, f.sent("extend"))
				require.Equal(t, c.freed.String(), f.sent("releaseAll"))
				require.Empty(t, f.sent("renew"))
			})
		})
	}
}

// The row of a fixed lease that was handed over is checked after a third of the requested
// time.
func TestHandedOverLeaseTakenAway(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		_, k := f.handedOver(l, "x", AutoRenew, 9*time.Second)
		f.until(2 * time.Second)
		f.take("x", time.Hour)
		f.requireEnd(k, 3*time.Second, ErrLost)
	})
}

// And then again, after a third of the time for which it is yet trusted; one that was
// extended like one that was granted.
func TestHandedOverLeaseIsChecked(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		extend time.Duration // at 1 s
		taken  time.Duration
		told   time.Duration
	}{
		"not extended": {0, 4 * s, 4700 * ms},
		"extended":     {24 * s, 5 * s, 9 * s},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				_, k := f.handedOver(l, "x", AutoRenew, 9*s)
				f.until(s)
				if c.extend > 0 {
					require.NoError(t, k.Extend(bg, c.extend))
				}
				f.until(c.taken)
				f.take("x", time.Hour)
				f.requireEnd(k, c.told, ErrLost)
			})
		})
	}
}

// reentered re-enters for the given lease, and unlocks that handle if so wanted.
func reentered(lease time.Duration, unlock bool) func(*testing.T, *Lock) {
	return func(t *testing.T, k *Lock) {
		inner, err := k.locker.TryLock(k.Context(), k.Name(), 0, lease)
		require.NoError(t, err)
		require.Equal(t, k.Token(), inner.Token())
		if unlock {
			require.NoError(t, inner.Unlock())
		}
	}
}

// A re-entry that requests more than the row promises has it renewed.
func TestReentryBeyondAHandedOverLease(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		_, k := f.handedOver(l, "x", AutoRenew, 5*time.Second)
		reentered(40*time.Second, false)(t, k)
		<-k.Context().Done()
		require.GreaterOrEqual(t, f.now(), 39*time.Second)
		require.LessOrEqual(t, f.now(), 39*time.Second+ms, "whole milliseconds are renewed")
		require.Len(t, strings.Fields(f.sent("renew")), 1)
	})
}

// An AutoRenew handle that re-enters a fixed lease after a handoff keeps it.
func TestReentryKeepsAHandedOverLock(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		_, k := f.handedOver(l, "x", AutoRenew, 5*time.Second)
		f.until(4 * time.Second)
		inner, err := l.TryLock(k.Context(), "x", 0, AutoRenew)
		require.NoError(t, err)
		f.until(time.Hour)
		require.NoError(t, inner.Err())
		require.NoError(t, k.Err())
		require.NoError(t, inner.Unlock())
		f.requireEnd(k, time.Hour, ErrLost) // what is left runs its course, and that is over
	})
}

// The result of an Extend that was in flight when its handle was unlocked belongs to the next
// holder, and what the Extend requested does not bind that one.
func TestExtendDuringAHandoff(t *testing.T) {
	for lease, until := range map[time.Duration]time.Duration{AutoRenew: 0, 20 * time.Second: 50*ms + 19*time.Second} {
		t.Run(lease.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				old := f.acquired(l, bg, "x", AutoRenew)
				p := f.try(l, bg, "x", WaitForever, lease)
				f.meet(slow(time.Second), "extend")
				extended := make(chan error)
				go func() { extended <- old.Extend(bg, 25*time.Second) }()
				f.until(50 * ms)
				require.NoError(t, old.Unlock())
				k := p.granted(50 * ms)
				require.ErrorIs(t, <-extended, ErrNotHeld)
				if until > 0 {
					f.requireEnd(k, until, ErrLost)
					return
				}
				f.until(time.Minute)
				require.NoError(t, k.Err())
			})
		})
	}
}

// If that Extend finds the row lost, the loss is reported to the next holder.
func TestExtendDuringAHandoffFindsTheRowLost(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		old := f.acquired(l, bg, "x", AutoRenew)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.take("x", time.Hour)
		f.meet(slow(100*ms), "extend")
		extended := make(chan error)
		go func() { extended <- old.Extend(bg, 20*time.Second) }()
		f.until(ms)
		require.NoError(t, old.Unlock())
		k := p.granted(ms)
		require.ErrorIs(t, <-extended, ErrNotHeld)
		f.requireEnd(k, 100*ms, ErrLost)
	})
}

// The statement that replaces a lease that does not suffice can fail in every way. The lock
// that was handed over is then released, and the call makes another attempt.
func TestReplacementThatFails(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		flt    fault
		at     time.Duration // when the next has the lock
		freed  string        // when the background was busy, at least
		counts string
	}{
		"deadlock":        {fails(errDeadlock), 10 * ms, "1s", "acquire 2, confirm 1, releaseAll 1"},
		"broken":          {fails(errBroken), 10 * ms, "1s", ""},
		"cut":             {cut, 10 * ms, "1s", ""},
		"overtaken":       {overtaken(5 * ms), 10 * ms, "1s", ""},
		"mute":            {mute, 10*s + 10*ms, "11s", ""},
		"hangs":           {hangs, 10*s + 10*ms, "11s", ""},
		"late":            {late(2 * s), 2 * s, "", "acquire 1, confirm 1"},
		"answered late":   {slow(2 * s), 2 * s, "", "acquire 1, confirm 1"},
		"row locked":      {nil, 2 * s, "", "acquire 1, confirm 1"},
		"taken away":      {none, 3 * s, "", "acquire 3, confirm 1"},
		"late, too late":  {slow(9500 * ms), 9500 * ms, "", "acquire 1, confirm 1"},
		"after the lease": {late(9500 * ms), 9500 * ms, "", "acquire 1, confirm 1"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff, rarely)
				old := f.acquired(l, bg, "x", 8*s)
				p := f.try(l, bg, "x", WaitForever, AutoRenew)
				behind := f.try(l, bg, "x", WaitForever, AutoRenew)
				f.until(s)
				f.anew()
				if name == "row locked" {
					unblock := f.block("x")
					time.AfterFunc(2*s, unblock)
				} else {
					f.meet(nth(1, c.flt), "acquire")
				}
				if name == "taken away" {
					f.meet(nth(1, func(_ context.Context, serve func()) error { serve(); f.take("x", 3*s); return nil }), "confirm")
				}
				require.NoError(t, old.Unlock())
				k := p.granted(s + c.at)
				synctest.Wait()
				if c.counts != "" {
					require.Equal(t, c.counts, strings.Split(f.counts(), ", look")[0])
				}
				if c.freed != "" {
					require.True(t, strings.HasPrefix(f.sent("releaseAll"), c.freed), f.sent("releaseAll"))
				}
				require.Greater(t, k.Token(), old.Token())
				f.until(2 * time.Minute)
				require.NoError(t, k.Err(), "no undo frees it")
				require.False(t, behind.over())
				at := f.now()
				require.NoError(t, k.Unlock())
				require.NoError(t, behind.granted(at).Unlock())
				require.Zero(t, f.left("x"))
				require.Equal(t, 0, l.Stats().Held)
			})
		})
	}
}

// If a replacement fails for good, the call fails, and neither the caller nor the previous
// holder has the lock.
func TestReplacementThatIsDenied(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, other := f.locker(withHandoff, rarely), f.locker()
		old := f.acquired(l, bg, "x", time.Hour)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(time.Second)
		f.meet(nth(1, fails(errDenied)), "acquire")
		require.NoError(t, old.Unlock())
		p.refused(time.Second, errDenied)
		synctest.Wait()
		require.Equal(t, "acquire 2, confirm 1, releaseAll 1", f.counts())
		require.Zero(t, f.left("x"))
		f.acquired(other, bg, "x", AutoRenew)
	})
}

// An attempt to take over a lease that does not suffice leaves nothing behind in
// the caller's context: the bubble finds the goroutine that would wait for it.
func TestReplacementLeavesNoContext(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		old := f.acquired(l, bg, "x", time.Hour)
		p := f.try(l, foreignContext{bg, make(chan struct{})}, "x", WaitForever, AutoRenew)
		require.NoError(t, old.Unlock())
		require.NoError(t, p.granted(0).Unlock())
	})
}

// A foreignContext can be followed only by a goroutine.
type foreignContext struct {
	context.Context
	done chan struct{}
}

func (c foreignContext) Done() <-chan struct{} { return c.done }

// The row was taken away before it could be replaced: that is no refusal.
func TestReplacementOfARowTakenAway(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff, rarely)
		old := f.acquired(l, bg, "x", time.Hour)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.take("x", 3*time.Second)
		require.NoError(t, old.Unlock())
		k := p.granted(3 * time.Second)
		require.Equal(t, "0s 0s 0s 3s", f.sent("acquire"))

		p = f.try(l, bg, "x", WaitForever, time.Hour)
		f.free("x")
		f.anew()
		require.NoError(t, k.Unlock())
		p.granted(3 * time.Second)
		require.Equal(t, "3s 3s", f.sent("acquire"))
	})
}

// A lease that was handed over through a shorter one, and was kept by a re-entry, belongs to
// the next holder as a whole.
func TestHandoffForgetsAShorterLease(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		_, k := f.handedOver(l, "x", AutoRenew, 5*time.Second)
		kept, err := l.TryLock(k.Context(), "x", 0, AutoRenew)
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		require.NoError(t, kept.Unlock())
		k = p.granted(0)
		inner, err := l.TryLock(k.Context(), "x", 0, 2*time.Second)
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
		require.Equal(t, "acquire 1", f.counts())
		f.until(29*time.Second - ms)
		require.NoError(t, inner.Err())
		f.until(29 * time.Second)
		require.Equal(t, ErrLost, inner.Err())
	})
}

// A request for a lease that was handed over and has ended sets no timer.
func TestEndedHandedOverLeaseStaysEnded(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		_, k := f.handedOver(l, "x", AutoRenew, 5*time.Second)
		require.NoError(t, k.Unlock())
		l.watchdog.Change(k.hold.lease.Load(), k.requested, 1)
		require.False(t, k.hold.lease.Load().Timer().Stop(), "a timer was left running")
	})
}

// The caller leaves while the row is being replaced.
func TestAbandonedReplacement(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		flt  fault
		free time.Duration // the row, at the latest
	}{
		"granted late":  {late(500 * ms), 500 * ms},
		"answered late": {slow(500 * ms), 500 * ms},
		"fails":         {after(500*ms, fails(errDenied)), 500 * ms},
		"cut":           {after(500*ms, cut), 500 * ms},
		"hangs":         {hangs, 100*ms + detachedTimeout},
		"mute":          {mute, 100*ms + detachedTimeout},
	} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprint(name, behind), func(t *testing.T) {
				inBubble(t, func(t *testing.T, f *fakeRepo) {
					l := f.locker(withHandoff, rarely)
					old := f.acquired(l, bg, "x", time.Hour)
					ctx, cancel := context.WithCancel(bg)
					p := f.try(l, ctx, "x", WaitForever, AutoRenew)
					var next *pending
					if behind {
						next = f.try(l, bg, "x", WaitForever, 5*s)
					}
					f.until(s)
					f.meet(nth(1, c.flt), "acquire")
					require.NoError(t, old.Unlock())
					f.until(s + 100*ms)
					cancel()
					p.refused(s+100*ms, context.Canceled)
					f.until(s + c.free - ms)
					require.Positive(t, f.left("x"))
					if behind {
						k := next.granted(s + c.free)
						f.requireEnd(k, s+c.free+4500*ms, ErrLost)
						return
					}
					f.until(s + c.free)
					require.Zero(t, f.left("x"))
					require.Zero(t, l.Stats().Held)
				})
			})
		}
	}
}

// The context of the next waiter ends during the handoff: it has the lock or not, and if not,
// the waiter behind it has the lock, or the lock is free.
func TestHandoffToACallThatEnds(t *testing.T) {
	const s = time.Second
	for name, end := range map[string]func(cancel context.CancelFunc, old *Lock){
		"Unlock, cancel": func(cancel context.CancelFunc, old *Lock) { old.Unlock(); cancel() },
		"cancel, Unlock": func(cancel context.CancelFunc, old *Lock) { cancel(); old.Unlock() },
		"at once":        func(cancel context.CancelFunc, old *Lock) { go cancel(); old.Unlock() },
		"the wait is over": func(_ context.CancelFunc, old *Lock) {
			time.Sleep(time.Until(old.requested.Until) - time.Hour + 2*s)
			old.Unlock()
		},
	} {
		for _, behind := range []bool{false, true} {
			for _, lease := range []time.Duration{AutoRenew, 5 * s} {
				t.Run(fmt.Sprint(name, behind, lease), func(t *testing.T) {
					var granted, refused int
					for range 100 {
						inBubble(t, func(t *testing.T, f *fakeRepo) {
							l := f.locker(withHandoff, rarely)
							old := f.acquired(l, bg, "x", time.Hour)
							ctx, cancel := context.WithCancel(bg)
							defer cancel()
							p := f.try(l, ctx, "x", 2*s, lease)
							var next *pending
							if behind {
								next = f.try(l, bg, "x", WaitForever, 5*s)
							}
							end(cancel, old)
							p.wait()
							at := f.now()
							synctest.Wait()
							if p.err == nil {
								granted++
								require.NoError(t, p.lock.Err())
								require.NoError(t, p.lock.Unlock())
							} else {
								refused++
								require.ErrorIs(t, p.err, ErrNotAcquired)
							}
							if behind {
								require.NoError(t, next.granted(at).Unlock())
							}
							synctest.Wait()
							require.Equal(t, at, f.now())
							require.Zero(t, f.left("x"))
							require.Zero(t, l.Stats().Held)
							require.Zero(t, l.Stats().Waiting)
							require.Zero(t, l.queues.Len())
						})
					}
					t.Log(granted, "granted,", refused, "refused")
				})
			}
		}
	}
}

// Close finds the lock on its way from one holder to the next.
func TestCloseDuringAHandoff(t *testing.T) {
	for _, lease := range []time.Duration{AutoRenew, 2 * time.Hour} {
		t.Run(lease.String(), func(t *testing.T) {
			var granted, refused int
			for range 200 {
				inBubble(t, func(t *testing.T, f *fakeRepo) {
					l := f.locker(withHandoff)
					from := lease
					if lease != AutoRenew {
						from = time.Hour
					}
					old := f.acquired(l, bg, "x", from)
					p := f.try(l, bg, "x", WaitForever, lease)
					q := f.try(l, bg, "x", WaitForever, lease)
					require.NoError(t, old.Unlock())
					require.NoError(t, l.Close())
					require.Zero(t, f.now())
					p.wait()
					if p.err == nil {
						granted++
						require.Equal(t, ErrClosed, p.lock.Err())
						require.Equal(t, ErrClosed, context.Cause(p.lock.Context()))
					} else {
						refused++
						require.ErrorIs(t, p.err, ErrClosed)
					}
					q.refused(0, ErrClosed)
					require.Zero(t, f.left("x"))
					require.Zero(t, l.Stats().Held)
				})
			}
			t.Log(granted, "granted,", refused, "refused")
		})
	}
}

// Close while the row is being replaced.
func TestCloseDuringAReplacement(t *testing.T) {
	for name, c := range map[string]struct {
		flt  fault
		took time.Duration
	}{
		"late":  {late(500 * ms), 500 * ms},
		"fails": {after(500*ms, fails(errDenied)), 500 * ms},
		"mute":  {mute, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				old := f.acquired(l, bg, "x", time.Hour)
				p := f.try(l, bg, "x", WaitForever, AutoRenew)
				f.meet(c.flt, "acquire")
				require.NoError(t, old.Unlock())
				synctest.Wait()
				err := l.Close()
				require.Equal(t, name == "mute", err != nil, "what was cut off may yet be granted")
				require.Equal(t, c.took, f.now())
				p.refused(0, ErrClosed)
				require.Zero(t, f.left("x"))
			})
		})
	}
}

// A lease that is lost during a handoff is reported to no holder: the next one acquires the
// row again.
func TestLeaseThatEndsInAHandoff(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff, rarely)
		old := f.acquired(l, bg, "x", AutoRenew)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		// The next is not quick enough to notice.
		l.mu.Lock()
		left := &handoff{tokenRange: old.hold.tokens, last: old.Token(), lease: old.hold.lease.Load()}
		l.mu.Unlock()
		go func() {
			l.mu.Lock()
			old.end(ErrNotHeld)
			delete(l.holds, old.hold.key)
			l.endHold(old.hold, ErrNotHeld)
			l.mu.Unlock()
			l.watchdog.OwnerChanged(left.lease.Claim)
			old.hold.waiter.Offer(left)
		}()
		k := p.granted(0)
		synctest.Wait()
		require.Equal(t, old.Token()+store.TokenRange, k.Token())
		require.NoError(t, k.Err())
		require.Zero(t, l.Stats().Lost)
	})
}

// Waiters that share the owner to which the lock was handed over re-enter it.
func TestHandoffToAnOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		owner := WithOwner(bg)
		old := f.acquired(l, bg, "x", AutoRenew)
		head := f.try(l, owner, "x", WaitForever, AutoRenew)
		stranger := f.try(l, bg, "x", WaitForever, AutoRenew)
		second := f.try(l, owner, "x", WaitForever, 10*time.Second)
		require.NoError(t, old.Unlock())
		k1, k2 := head.granted(0), second.granted(0)
		require.Equal(t, old.Token()+1, k1.Token())
		require.Equal(t, k1.Token(), k2.Token())
		require.Equal(t, Stats{Held: 1, Waiting: 1, Acquired: 2, Reentered: 1, Released: 1}, l.Stats())
		require.NoError(t, k2.Unlock())
		require.False(t, stranger.over())
		require.NoError(t, k1.Unlock())
		k3 := stranger.granted(0)
		require.Equal(t, k1.Token()+1, k3.Token())
		require.Equal(t, "acquire 1", f.counts(), "the lease was kept for all of them")

		// The owner comes again behind a stranger.
		again := f.try(l, owner, "x", WaitForever, AutoRenew)
		require.NoError(t, k3.Unlock())
		require.Equal(t, k3.Token()+1, again.granted(0).Token())
	})
}

// A call with wait 0 is refused during a handoff, and sends nothing.
func TestNoWaitBesideAHandoff(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		_, k := f.handedOver(l, "x", AutoRenew, AutoRenew)
		f.try(l, bg, "x", 0, AutoRenew).refused(0, ErrNotAcquired)
		p := f.try(l, bg, "x", WaitForever, 2*time.Hour)
		f.anew()
		f.meet(slow(500*ms), "acquire")
		require.NoError(t, k.Unlock())
		synctest.Wait()
		impatient := f.try(l, bg, "x", 0, AutoRenew)
		require.False(t, impatient.over(), "the statement that replaces may fail")
		p.granted(500 * ms)
		impatient.refused(500*ms, ErrNotAcquired)
		require.Equal(t, "acquire 1, probe 1", f.counts())

		// If it does, there is nothing to be had without the database.
		f.meet(after(500*ms, fails(errDenied)), "acquire")
		next := f.try(l, bg, "x", WaitForever, 3*time.Hour)
		require.NoError(t, p.lock.Unlock())
		synctest.Wait()
		impatient = f.try(l, bg, "x", 0, AutoRenew)
		f.until(900 * ms)
		f.meet(none, "acquire")
		next.refused(time.Second, errDenied)
		impatient.wait()
		synctest.Wait()
		require.Equal(t, time.Second, impatient.at)
		if impatient.err == nil {
			require.NoError(t, impatient.lock.Unlock())
		}
		require.Zero(t, f.left("x"))
	})
}

// A transaction may be under the guard of a lock that is unlocked: the next holder
// has to ask the database, which knows.
func TestGuardedLockIsNotHandedOver(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		l.table = emptyTable(t) // Guard sends its statement in the caller's transaction
		db := sql.OpenDB(new(queries))
		defer db.Close()
		tx, err := db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()

		_, k := f.handedOver(l, "x", AutoRenew, AutoRenew)
		require.NoError(t, k.Guard(bg, tx))
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.anew()
		require.NoError(t, k.Unlock())
		next := p.granted(0)
		require.Equal(t, "acquire 1, release 1", f.counts())

		// That concerns no later holder.
		p = f.try(l, bg, "x", WaitForever, AutoRenew)
		f.anew()
		require.NoError(t, next.Unlock())
		p.granted(0)
		require.Empty(t, f.counts())
		l.table = nil
	})
}

// A lock that was handed over is guarded by the token in the row: its own is in no row.
func TestGuardOfAHandedOverLock(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		l.table = emptyTable(t)
		old, k := f.handedOver(l, "x", AutoRenew, AutoRenew)
		var q queries
		db := sql.OpenDB(&q)
		defer db.Close()
		tx, err := db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		require.NoError(t, k.Guard(bg, tx))
		require.Contains(t, q[0], fmt.Sprintf("token = %d AND", old.Token()))
		require.ErrorIs(t, old.Guard(bg, tx), ErrNotHeld)
		require.Len(t, q, 1)
		l.table = nil
	})
}

// emptyTable has no database.
func emptyTable(t *testing.T) *store.Store {
	tbl, err := store.New(nil, "", "t", "", 0, 0)
	require.NoError(t, err)
	return tbl
}

// queries is a database that notes what it is asked, and answers 1.
type queries []string

func (q *queries) Connect(context.Context) (driver.Conn, error) { return q, nil }
func (q *queries) Driver() driver.Driver                        { return nil }
func (q *queries) Prepare(string) (driver.Stmt, error)          { return nil, errBroken }
func (q *queries) Close() error                                 { return nil }
func (q *queries) Begin() (driver.Tx, error)                    { return q, nil }
func (q *queries) Commit() error                                { return nil }
func (q *queries) Rollback() error                              { return nil }

func (q *queries) QueryContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	*q = append(*q, query)
	return new(one), nil
}

// one is a single row with the number 1.
type one struct{ read bool }

func (*one) Columns() []string { return []string{"1"} }
func (*one) Close() error      { return nil }

func (o *one) Next(row []driver.Value) error {
	if o.read {
		return io.EOF
	}
	o.read, row[0] = true, int64(1)
	return nil
}
