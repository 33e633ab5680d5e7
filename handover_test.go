package mysqllock

import (
	"context"
	"testing"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"

	"github.com/stretchr/testify/require"
)

func (f *fakeRepo) ReleaseAfter(ctx context.Context, c store.Claim, m store.MinHold) (bool, store.Process, error) {
	type answer struct {
		freed bool
		next  store.Process
	}
	a, _, err := send(ctx, f, "releaseAfter", []string{c.Name}, func(now time.Time) (a answer) {
		r := f.rows[c.Name]
		kept := "+" + c.Owner[1:]
		if r.owner != c.Owner && r.owner != kept {
			return a
		}
		end := r.expires
		if r.owner == c.Owner {
			if end = r.acquired.Add(m.Held); m.Until.After(end) {
				end = m.Until
			}
		}
		a = answer{true, r.nextWaiter()}
		if end.After(now) {
			r.owner, r.holds, r.expires, r.session = kept, 0, end, 0
			f.rows[c.Name] = r
		} else {
			f.rows[c.Name] = fakeRow{token: r.token, freed: now, waiters: r.waiters}
		}
		return a
	})
	return a.freed, a.next, err
}

func (f *fakeRepo) Detach(ctx context.Context, req store.DetachRequest) (bool, store.Process, time.Time, error) {
	type answer struct {
		detached bool
		next     store.Process
	}
	a, sent, err := send(ctx, f, "detach", []string{req.Name}, func(now time.Time) (a answer) {
		r := f.rows[req.Name]
		switch {
		case r.owner == req.Owner:
			r.owner, r.holds, r.session, r.expires = req.Ticket, 0, 0, now.Add(req.Lease)
			if req.Age > 0 {
				r.acquired = now.Add(-req.Age)
			}
		case r.owner == req.Ticket && r.expires.After(now):
			r.expires = now.Add(req.Lease)
		default:
			return a
		}
		f.rows[req.Name] = r
		return answer{true, r.nextWaiter()}
	})
	return a.detached, a.next, sent, err
}

func (f *fakeRepo) Attach(ctx context.Context, req store.AttachRequest) (store.Grant, error) {
	type answer struct {
		token   uint64
		expired bool
	}
	a, sent, err := send(ctx, f, "attach", []string{req.Name}, func(now time.Time) (a answer) {
		r := f.rows[req.Name]
		switch {
		case r.owner == req.Ticket && !r.expires.After(now):
			return answer{expired: true}
		case r.owner == req.Ticket:
			r.expires = now.Add(req.Lease)
		case r.owner == req.Owner:
			if until := now.Add(req.Lease); until.After(r.expires) {
				r.expires = until
			}
		default:
			return a
		}
		r.owner, r.holds = req.Owner, 1
		f.rows[req.Name] = r
		return answer{token: r.token}
	})
	switch {
	case err != nil:
		return store.Grant{Claim: req.Claim}, err
	case a.expired:
		return store.Grant{}, store.ErrTicketExpired
	case a.token > 0:
		f.mu.Lock()
		f.terms++
		f.mu.Unlock()
	}
	return store.Grant{Token: a.token, Claim: req.Claim, Sent: sent}, nil
}

// The name stays taken until the time is over, for waiters of every process, and whatever keeps
// the row.
func TestUnlockAfter(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, other := f.locker(withSignal, withHandoff), f.locker(withSignal)
		k := f.acquired(l, bg, "x", AutoRenew)
		f.until(35 * time.Second) // a session keeps the row
		local := f.try(l, bg, "x", WaitForever, AutoRenew)
		foreign := f.try(other, bg, "x", WaitForever, AutoRenew)
		require.NoError(t, k.UnlockAfter(time.Minute))
		require.Equal(t, 35*time.Second, f.now())
		require.Equal(t, ErrNotHeld, context.Cause(k.Context()))
		require.ErrorIs(t, k.UnlockAfter(time.Minute), ErrNotHeld)
		require.Equal(t, "35s", f.sent("releaseAfter"))
		require.Empty(t, f.sent("release"))
		require.Equal(t, 25*time.Second, f.left("x"))
		f.try(other, bg, "x", 0, AutoRenew).refused(35*time.Second, ErrNotAcquired)
		f.until(59 * time.Second)
		require.False(t, local.over())
		require.False(t, foreign.over())
		// The process that has waited longest is signalled when the row is given back, and so
		// knows for how long it stays taken.
		next := foreign.granted(time.Minute)
		require.NoError(t, next.Unlock())
		require.NoError(t, local.granted(time.Minute).Unlock())
		require.Equal(t, int64(2), l.Stats().Released)
	})
}

// A waiter of the same process gets the lock when the time is over, not by a handoff.
func TestUnlockAfterBesideALocalWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		k := f.acquired(l, bg, "x", AutoRenew)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		require.NoError(t, k.UnlockAfter(time.Second))
		next := p.granted(time.Second)
		require.GreaterOrEqual(t, next.Token(), k.Token()+store.TokenRange)
	})
}

func TestUnlockAfterTheTime(t *testing.T) {
	for name, held := range map[string]time.Duration{"none": 0, "negative": -time.Hour, "passed": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withHandoff)
				k := f.acquired(l, bg, "x", AutoRenew)
				f.until(4 * time.Second)
				p := f.try(l, bg, "x", WaitForever, AutoRenew)
				require.NoError(t, k.UnlockAfter(held))
				next := p.granted(4 * time.Second)
				if held <= 0 {
					require.Equal(t, k.Token()+1, next.Token(), "as Unlock, it hands over")
				}
				require.NoError(t, next.Unlock())
				require.Zero(t, f.left("x"))
			})
		})
	}
}

// The longest time that was given counts when the last handle is unlocked.
func TestUnlockAfterOfSeveralHandles(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		ctx := WithOwner(bg)
		var handles []*Lock
		for range 4 {
			handles = append(handles, f.acquired(l, ctx, "x", AutoRenew))
		}
		require.NoError(t, handles[0].UnlockAfter(5*time.Second))
		require.NoError(t, handles[1].UnlockAfter(20*time.Second))
		require.NoError(t, handles[2].UnlockAfter(10*time.Second))
		require.Equal(t, "acquire 1", f.counts())
		f.until(2 * time.Second)
		require.NoError(t, handles[3].Unlock())
		require.Equal(t, "acquire 1, releaseAfter 1", f.counts())
		require.Equal(t, 18*time.Second, f.left("x"))
		f.try(l, bg, "x", WaitForever, AutoRenew).granted(20 * time.Second)
	})
}

// A lock that was handed over inside the process counts from then, although the row does not
// show it.
func TestUnlockAfterAHandoff(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		k := f.acquired(l, bg, "x", AutoRenew)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(9 * time.Second)
		require.NoError(t, k.Unlock())
		next := p.granted(9 * time.Second)
		require.Equal(t, k.Token()+1, next.Token())
		f.until(11 * time.Second)
		require.NoError(t, next.UnlockAfter(5*time.Second))
		require.Equal(t, 3*time.Second, f.left("x"))
		f.try(l, bg, "x", WaitForever, AutoRenew).granted(14 * time.Second)
	})
}

// While the outcome is unknown, the library repeats the statement, and frees nothing early: not
// even a row that its session keeps and that no hold has.
func TestUnlockAfterIsRepeated(t *testing.T) {
	for name, c := range map[string]struct {
		flt  fault
		held bool // by its hold, while the statements meet the fault
	}{
		"not executed":   {fails(errBroken), true},
		"no reply":       {mute, false},
		"hangs":          {hangs, true},
		"not permitted":  {fails(errDenied), true},
		"executed, lost": {cut, false},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(WithLease(time.Second))
				keeps := f.acquired(l, bg, "another", AutoRenew) // keeps the session alive
				k := f.acquired(l, bg, "x", AutoRenew)
				f.until(5 * time.Second)
				f.meet(c.flt, "releaseAfter")
				require.Error(t, k.UnlockAfter(time.Minute))
				require.Equal(t, 1, l.releaser.Pending())
				for at := 10; at < 55; at++ {
					f.until(time.Duration(at) * time.Second)
					require.Positive(t, f.left("x"), "at %d s", at)
				}
				if c.held {
					require.LessOrEqual(t, f.left("x"), time.Second, "by the session")
				}
				f.meet(none, "releaseAfter")
				f.until(57 * time.Second)
				require.Equal(t, 3*time.Second, f.left("x"))
				require.Zero(t, l.releaser.Pending())
				f.until(61 * time.Second)
				require.Zero(t, f.left("x"))
				require.Empty(t, f.sent("release"))
				require.NoError(t, keeps.Err())
			})
		})
	}
}

// The releases go on until they succeed, also when the time is over.
func TestUnlockAfterFreesTheRowInTheEnd(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(WithLease(time.Second))
		f.acquired(l, bg, "another", AutoRenew)
		k := f.acquired(l, bg, "x", AutoRenew)
		f.until(5 * time.Second)
		f.meet(fails(errBroken), "releaseAfter")
		require.Error(t, k.UnlockAfter(time.Minute))
		f.until(time.Hour)
		require.Positive(t, f.left("x"), "the session keeps the row")
		f.meet(none, "releaseAfter")
		f.until(time.Hour + 2*time.Second)
		require.Zero(t, f.left("x"))
		require.Zero(t, l.releaser.Pending())
	})
}

// A row that was taken away is no longer this lock's.
func TestUnlockAfterOfALostLock(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.take("x", time.Hour)
		require.ErrorIs(t, k.UnlockAfter(time.Minute), ErrLost)
		require.Zero(t, l.releaser.Pending())
		require.Equal(t, int64(1), l.Stats().Lost)

		k = f.acquired(l, bg, "y", time.Second)
		f.until(time.Second)
		require.ErrorIs(t, k.UnlockAfter(time.Minute), ErrLost)
		require.Zero(t, f.left("y"))
	})
}

// Close keeps the promise of a handle that was unlocked before, and repeats what is pending.
func TestUnlockAfterBeforeClose(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		ctx := WithOwner(bg)
		first, second := f.acquired(l, ctx, "x", AutoRenew), f.acquired(l, ctx, "x", AutoRenew)
		k := f.acquired(l, bg, "y", AutoRenew)
		f.meet(fails(errBroken), "releaseAfter")
		require.NoError(t, first.UnlockAfter(time.Minute))
		require.Error(t, k.UnlockAfter(time.Minute))
		at := f.now()
		f.meet(none, "releaseAfter")
		require.NoError(t, l.Close())
		f.requireEnd(second, at, ErrClosed)
		require.ErrorIs(t, second.UnlockAfter(time.Minute), ErrClosed)
		require.Equal(t, time.Minute-at, f.left("x"))
		require.Equal(t, time.Minute-at, f.left("y"))
	})
}

func TestRemaining(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		k, fixed := f.acquired(l, bg, "x", AutoRenew), f.acquired(l, bg, "y", 5*time.Second)
		require.Equal(t, 29*time.Second, k.Remaining())
		require.Equal(t, 4500*time.Millisecond, fixed.Remaining())
		f.until(4 * time.Second)
		require.Equal(t, 25*time.Second, k.Remaining())
		require.Equal(t, 500*time.Millisecond, fixed.Remaining())
		require.NoError(t, fixed.Extend(bg, 10*time.Second))
		require.Equal(t, 9*time.Second, fixed.Remaining())
		f.until(13 * time.Second)
		require.Zero(t, fixed.Remaining())
		f.until(35 * time.Second) // the session was renewed at 30 s
		require.Equal(t, 24*time.Second, k.Remaining())
		f.take("x", time.Hour)
		f.until(41 * time.Second)
		require.Zero(t, k.Remaining(), "lost")

		k = f.acquired(l, bg, "z", AutoRenew)
		require.NoError(t, k.Unlock())
		require.Zero(t, k.Remaining())
		k = f.acquired(l, bg, "z", 1<<62)
		require.Greater(t, k.Remaining(), time.Duration(1<<61))
		l.Close()
		require.Zero(t, k.Remaining())
	})
}
