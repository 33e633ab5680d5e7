package mysqllock

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"

	"github.com/stretchr/testify/require"
)

// detached acquires a lock and detaches it.
func (f *fakeRepo) detached(l *Locker, name string, lease time.Duration) (*Lock, Ticket) {
	f.t.Helper()
	k := f.acquired(l, bg, name, AutoRenew)
	t, err := k.Detach(bg, lease)
	require.NoError(f.t, err)
	return k, t
}

func (f *fakeRepo) attached(l *Locker, ctx context.Context, t Ticket, lease time.Duration) *Lock {
	f.t.Helper()
	k, err := l.Attach(ctx, t, lease)
	require.NoError(f.t, err)
	require.NoError(f.t, k.Err())
	return k
}

// attachLost requires that a ticket cannot be attached any more.
func (f *fakeRepo) attachLost(l *Locker, t Ticket) {
	f.t.Helper()
	k, err := l.Attach(bg, t, AutoRenew)
	require.ErrorIs(f.t, err, ErrLost)
	require.Nil(f.t, k)
}

// A lock goes from one process to another, with its token, and is held all the time.
func TestDetachAndAttach(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, other := f.locker(), f.locker()
		k := f.acquired(l, bg, "x", AutoRenew)
		f.until(35 * time.Second) // a session keeps the row
		sent := f.counts()
		ticket, err := k.Detach(bg, time.Minute)
		require.NoError(t, err)
		require.Equal(t, strings.Replace(sent, "begin 1", "begin 1, detach 1", 1), f.counts())
		require.Equal(t, ErrNotHeld, context.Cause(k.Context()))
		require.Equal(t, ErrNotHeld, k.Err())
		require.ErrorIs(t, k.Unlock(), ErrNotHeld)
		require.Zero(t, k.Remaining())
		require.Equal(t, time.Minute, f.left("x"))
		require.Equal(t, Stats{Acquired: 1, Released: 1, Renewals: l.Stats().Renewals}, l.Stats())
		f.try(l, bg, "x", 0, AutoRenew).refused(35*time.Second, ErrNotAcquired)

		f.until(90 * time.Second)
		type key struct{}
		request, cancel := context.WithCancel(context.WithValue(bg, key{}, "v"))
		next := f.attached(other, request, ticket, AutoRenew)
		require.Equal(t, "x", next.Name())
		require.Equal(t, k.Token(), next.Token())
		require.Equal(t, "v", next.Context().Value(key{}))
		require.Equal(t, DefaultLease, f.left("x"))
		require.Equal(t, Stats{Held: 1, Acquired: 1}, other.Stats())
		require.Equal(t, "1m30s", f.sent("attach"))
		f.attachLost(l, ticket)
		f.attachLost(other, ticket)

		f.until(10 * time.Minute) // it is renewed
		require.NoError(t, next.Err())
		cancel()
		require.ErrorIs(t, next.Context().Err(), context.Canceled)
		require.NoError(t, next.Err(), "the lock is still held")
		require.NoError(t, next.Unlock())
		require.Zero(t, f.left("x"))
		f.attachLost(other, ticket)
		again := f.acquired(l, bg, "x", AutoRenew)
		require.Greater(t, again.Token(), next.Token())
		f.attachLost(other, ticket)
		require.NoError(t, again.Unlock())
	})
}

func TestAttachLeases(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		_, ticket := f.detached(l, "x", time.Hour)
		for _, lease := range []time.Duration{-1, 1, 9 * time.Millisecond} {
			_, err := l.Attach(bg, ticket, lease)
			require.ErrorIs(t, err, ErrInvalidLease)
		}
		k := f.attached(l, bg, ticket, 10*time.Second)
		require.Equal(t, 10*time.Second, f.left("x"), "shorter than that of the ticket")
		require.Equal(t, 9*time.Second, k.Remaining())
		f.requireEnd(k, 9*time.Second, ErrLost)
		_, err := k.Detach(bg, time.Second)
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, k.Unlock(), ErrLost)
	})
}

// A ticket is worth nothing when its lease has ended.
func TestTicketExpires(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, other := f.locker(), f.locker()
		_, ticket := f.detached(l, "x", 10*time.Second)
		waits := f.try(other, bg, "x", WaitForever, AutoRenew)
		f.until(10*time.Second - 1)
		require.False(t, waits.over())
		k := waits.granted(10 * time.Second)
		f.attachLost(l, ticket)
		require.NoError(t, k.Err())

		_, ticket = f.detached(l, "y", 10*time.Second)
		f.until(20 * time.Second)
		f.attachLost(l, ticket)
		require.Zero(t, f.left("y"))
	})
}

// Detach changes nothing if it cannot succeed.
func TestDetachIsRefused(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		ctx := WithOwner(bg)
		first, second := f.acquired(l, ctx, "x", AutoRenew), f.acquired(l, ctx, "x", 5*time.Second)
		refused := func(k *Lock, ctx context.Context, lease time.Duration, want error, text string) {
			t.Helper()
			ticket, err := k.Detach(ctx, lease)
			require.ErrorIs(t, err, want)
			require.ErrorContains(t, err, text)
			require.Empty(t, ticket)
		}
		for _, lease := range []time.Duration{AutoRenew, -time.Second, 9 * time.Millisecond} {
			refused(first, bg, lease, ErrInvalidLease, `detach "x"`)
		}
		refused(first, bg, time.Minute, errOtherHandles, "other handles")
		refused(second, bg, time.Minute, errOtherHandles, "other handles")
		ended, cancel := context.WithCancelCause(bg)
		cause := errors.New("shutting down")
		cancel(cause)
		require.NoError(t, first.Unlock())
		refused(first, bg, time.Minute, ErrNotHeld, "")
		refused(second, ended, time.Minute, cause, "")
		require.NoError(t, second.Err())
		require.NoError(t, second.Context().Err())
		require.Empty(t, f.sent("detach"))
		_, err := second.Detach(bg, time.Minute)
		require.NoError(t, err)

		lost := f.acquired(l, bg, "y", AutoRenew)
		f.take("y", time.Hour)
		refused(lost, bg, time.Minute, ErrLost, "")
		require.Equal(t, time.Hour, f.left("y"))
		require.Equal(t, int64(1), l.Stats().Lost)
		closed := f.acquired(l, bg, "z", AutoRenew)
		l.Close()
		refused(closed, bg, time.Minute, ErrClosed, "")
		_, err = l.Attach(bg, ticket{claim: store.Claim{Name: "z", Owner: store.NewTicketID(l.process)}}.encode(), AutoRenew)
		require.ErrorIs(t, err, ErrClosed)
	})
}

// Goroutines of the detaching process wait for the lock like others.
func TestDetachBesideLocalWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, other := f.locker(withSignal, withHandoff), f.locker(withSignal)
		k := f.acquired(l, bg, "x", AutoRenew)
		first, second := f.try(l, bg, "x", WaitForever, AutoRenew), f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(time.Second)
		ticket, err := k.Detach(bg, time.Hour)
		require.NoError(t, err)
		f.until(2 * time.Second)
		next := f.attached(other, bg, ticket, AutoRenew)
		f.until(3 * time.Second)
		require.False(t, first.over())
		require.NoError(t, next.Unlock())
		require.NoError(t, first.granted(3*time.Second).Unlock(), "it is signalled")
		require.NoError(t, second.granted(3*time.Second).Unlock())
	})
}

// A process attaches a lock for which others of its goroutines wait. These have their turn
// when it is unlocked or lost.
func TestAttachBesideLocalWaiters(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withHandoff)
		_, ticket := f.detached(l, "x", time.Hour)
		waits := f.try(l, bg, "x", WaitForever, AutoRenew)
		k := f.attached(l, bg, ticket, AutoRenew)
		f.until(time.Minute)
		require.False(t, waits.over())
		require.NoError(t, k.Unlock())
		k = waits.granted(time.Minute)
		require.NoError(t, k.Unlock())

		_, ticket = f.detached(l, "x", time.Hour)
		waits = f.try(l, bg, "x", WaitForever, AutoRenew)
		k = f.attached(l, bg, ticket, 10*time.Second)
		f.requireEnd(k, time.Minute+9*time.Second, ErrLost)
		require.NoError(t, waits.granted(time.Minute+10*time.Second).Unlock())
		require.ErrorIs(t, k.Unlock(), ErrLost)
	})
}

// The attached lock belongs to the owner of the context, whose calls re-enter it, also those
// that were waiting.
func TestAttachForAnOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		_, ticket := f.detached(l, "x", time.Hour)
		ctx := WithOwner(bg)
		f.until(time.Second)
		head, behind := f.try(l, ctx, "x", WaitForever, AutoRenew), f.try(l, ctx, "x", WaitForever, AutoRenew)
		k := f.attached(l, ctx, ticket, AutoRenew)
		handles := []*Lock{k, head.granted(time.Second), behind.granted(time.Second), f.acquired(l, k.Context(), "x", AutoRenew)}
		_, err := k.Detach(bg, time.Minute)
		require.ErrorIs(t, err, errOtherHandles)
		for _, h := range handles {
			require.Equal(t, k.Token(), h.Token())
			require.NoError(t, h.Unlock())
		}
		require.Zero(t, f.left("x"))
		require.Equal(t, int64(3), l.Stats().Reentered)

		// An owner that has lost the lock and not unlocked it.
		lost := f.acquired(l, ctx, "y", time.Second)
		f.until(3 * time.Second)
		_, ticket = f.detached(f.locker(), "y", time.Hour)
		_, err = l.Attach(ctx, ticket, AutoRenew)
		require.ErrorIs(t, err, ErrLost)
		require.ErrorIs(t, lost.Unlock(), ErrLost)
		k = f.attached(l, ctx, ticket, AutoRenew)
		_, err = l.Attach(k.Context(), ticket, AutoRenew)
		require.ErrorIs(t, err, errHeld)
	})
}

// A hold that began by a handoff keeps its own token, and the row's for Guard.
func TestDetachAfterAHandoff(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, other := f.locker(withHandoff), f.locker()
		first := f.acquired(l, bg, "x", AutoRenew)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		f.until(9 * time.Second)
		require.NoError(t, first.Unlock())
		k := p.granted(9 * time.Second)
		f.until(10 * time.Second)
		ticket, err := k.Detach(bg, time.Minute)
		require.NoError(t, err)
		next := f.attached(other, bg, ticket, AutoRenew)
		require.Equal(t, first.Token()+1, next.Token())
		require.Equal(t, first.Token(), next.hold.tokens.token)
		f.until(11 * time.Second)
		require.NoError(t, next.UnlockAfter(5*time.Second))
		require.Equal(t, 3*time.Second, f.left("x"), "it counts from the handoff")
	})
}

// A minimum that another handle has requested goes with the ticket.
func TestDetachCarriesTheMinimum(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		ctx := WithOwner(bg)
		k, again := f.acquired(l, ctx, "x", AutoRenew), f.acquired(l, ctx, "x", AutoRenew)
		require.NoError(t, again.UnlockAfter(time.Minute))
		f.until(2 * time.Second)
		ticket, err := k.Detach(bg, time.Minute)
		require.NoError(t, err)
		require.NoError(t, f.attached(l, bg, ticket, AutoRenew).Unlock())
		require.Equal(t, 58*time.Second, f.left("x"))
	})
}

// A renewal that arrives late neither prolongs the detached row nor binds it to a session.
func TestDetachDuringARenewal(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.acquired(l, bg, "another", AutoRenew) // keeps the session alive
		k := f.acquired(l, bg, "x", AutoRenew)
		f.meet(late(3*time.Second), "renew", "extend")
		f.until(11 * time.Second)
		require.Equal(t, "10s*2", f.sent("renew"))
		ticket, err := k.Detach(bg, 20*time.Second)
		require.NoError(t, err)
		f.until(25 * time.Second)
		require.Equal(t, 6*time.Second, f.left("x"))
		f.until(31 * time.Second)
		require.Zero(t, f.left("x"))
		f.attachLost(l, ticket)
	})
}

// Detach repeats a statement whose outcome is unknown. If it remains so, it returns no ticket,
// and the row is released, by whichever owner id it has by then.
func TestDetachWithUnknownOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		flt    fault
		ticket bool
		at     time.Duration // when Detach returns
	}{
		"reply lost, then answered":     {first(1, cut, none), true, 10 * time.Millisecond},
		"not executed, then answered":   {first(1, fails(errBroken), none), true, 10 * time.Millisecond},
		"deadlock, then answered":       {first(1, fails(errDeadlock), none), true, 10 * time.Millisecond},
		"no reply, then answered":       {first(1, mute, none), true, 1510 * time.Millisecond},
		"overtaken by its repetition":   {first(1, overtaken(time.Second), none), true, 10 * time.Millisecond},
		"broken":                        {fails(errBroken), false, 3 * time.Second},
		"replies lost":                  {cut, false, 3 * time.Second},
		"no reply":                      {mute, false, 3 * time.Second},
		"overtaken":                     {overtaken(4 * time.Second), false, 3 * time.Second},
		"not permitted":                 {fails(errDenied), false, 0},
		"reply later than the lease":    {slow(1200 * time.Millisecond), false, 1200 * time.Millisecond},
		"reply lost, then row locked":   {first(1, cut, fails(store.NotSent{Err: store.ErrRowLocked})), false, 10 * time.Millisecond},
		"executed later, then no reply": {first(1, overtaken(8*time.Second), hangs), false, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l, other := f.locker(WithLease(time.Hour)), f.locker()
				k := f.acquired(l, bg, "x", AutoRenew)
				f.meet(c.flt, "detach")
				lease := time.Hour
				if name == "reply later than the lease" {
					lease = time.Second
				}
				ticket, err := k.Detach(bg, lease)
				require.Equal(t, c.at, f.now())
				require.ErrorIs(t, k.Err(), ErrNotHeld)
				if c.ticket {
					require.NoError(t, err)
					require.NoError(t, f.attached(other, bg, ticket, AutoRenew).Unlock())
				} else {
					require.Error(t, err)
					require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller set no time limit")
					require.Empty(t, ticket)
				}
				f.until(20 * time.Second)
				require.Zero(t, f.left("x"))
				f.until(2 * time.Hour)
				require.Zero(t, l.releaser.Pending())
			})
		})
	}
}

// The end of the context ends Detach, and the row is released.
func TestDetachGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(WithLease(time.Hour))
		k := f.acquired(l, bg, "x", AutoRenew)
		f.meet(mute, "detach")
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		_, err := k.Detach(ctx, time.Hour)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, f.now())
		f.until(3 * time.Second)
		require.Zero(t, f.left("x"))
	})
}

// Attach repeats a statement whose outcome is unknown. If it remains so, what it may have
// taken is released.
func TestAttachWithUnknownOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		flt fault
		err error // nil if it succeeds
		at  time.Duration
	}{
		"reply lost, then answered":   {first(1, cut, none), nil, 10 * time.Millisecond},
		"not executed, then answered": {first(1, fails(errBroken), none), nil, 10 * time.Millisecond},
		"overtaken by its repetition": {first(1, overtaken(time.Second), none), nil, 10 * time.Millisecond},
		"no reply, then answered":     {first(1, mute, none), nil, 1510 * time.Millisecond},
		"replies lost":                {cut, ErrUnavailable, 3 * time.Second},
		"no reply":                    {mute, ErrUnavailable, 3 * time.Second},
		"locked":                      {fails(errDeadlock), ErrNotAcquired, 3 * time.Second},
		"overtaken":                   {overtaken(4 * time.Second), ErrUnavailable, 3 * time.Second},
		"not permitted":               {fails(errDenied), errDenied, 0},
		"too late":                    {slow(31 * time.Second), nil, 0}, // cut off before
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				if name == "too late" {
					c.err, c.at = ErrUnavailable, 3*time.Second
				}
				l, other := f.locker(), f.locker()
				_, ticket := f.detached(l, "x", 10*time.Second)
				f.meet(c.flt, "attach")
				k, err := other.Attach(bg, ticket, 20*time.Second)
				require.Equal(t, c.at, f.now())
				if c.err == nil {
					require.NoError(t, err)
					require.NoError(t, k.Unlock())
				} else {
					require.ErrorIs(t, err, c.err)
					require.NotErrorIs(t, err, context.DeadlineExceeded, "the caller set no time limit")
					require.Nil(t, k)
				}
				f.until(11 * time.Second)
				require.Zero(t, f.left("x"), "after the end of the ticket's lease")
				f.until(time.Hour)
				require.Zero(t, other.releaser.Pending())
				require.Zero(t, other.Stats().Held)
			})
		})
	}
}

// A grant that arrives when its lease has nearly ended is given back.
func TestAttachTooLate(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		_, ticket := f.detached(l, "x", time.Hour)
		f.meet(slow(500*time.Millisecond), "attach")
		_, err := l.Attach(bg, ticket, 520*time.Millisecond)
		require.ErrorIs(t, err, ErrLost)
		synctest.Wait()
		require.Zero(t, f.left("x"))
	})
}

// The end of the context ends Attach and leaves nothing behind.
func TestAttachGivenUp(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		_, ticket := f.detached(l, "x", time.Hour)
		cause := errors.New("shutting down")
		ended, cancel := context.WithCancelCause(bg)
		cancel(cause)
		_, err := l.Attach(ended, ticket, AutoRenew)
		require.ErrorIs(t, err, cause)
		require.Empty(t, f.sent("attach"))

		f.meet(mute, "attach")
		ctx, cancel := context.WithCancelCause(bg)
		time.AfterFunc(time.Second, func() { cancel(cause) })
		_, err = l.Attach(ctx, ticket, AutoRenew)
		require.ErrorIs(t, err, cause)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, time.Second, f.now())
		f.until(2 * time.Second)
		require.Zero(t, f.left("x"))
	})
}

// A muteStore has no reply to Attach. Its releases keep the row locked for a while.
type muteStore struct {
	*fakestore.Store
	locked atomic.Bool
}

func (s *muteStore) Attach(ctx context.Context, req store.AttachRequest) (store.Grant, error) {
	s.Store.Attach(ctx, req)
	<-ctx.Done()
	return store.Grant{}, ctx.Err()
}

func (s *muteStore) ReleaseAll(ctx context.Context, cs []store.Claim) (int64, store.Process, error) {
	s.locked.Store(true)
	defer s.locked.Store(false)
	time.Sleep(30 * time.Millisecond)
	return s.Store.ReleaseAll(ctx, cs)
}

func (s *muteStore) Probe(ctx context.Context, c store.Claim) (store.RowState, error) {
	time.Sleep(time.Millisecond)
	if s.locked.Load() {
		return store.RowLocked, nil
	}
	return s.Store.Probe(ctx, c)
}

// An Attach without a reply is not refused because of the release of its own row.
func TestAttachWithoutReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		self := store.NewProcess()
		s := &muteStore{Store: fakestore.NewTable().NewStore(self)}
		l := onStore(t, self, s)
		k, err := l.TryLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
		ticket, err := k.Detach(bg, time.Hour)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		_, err = l.Attach(ctx, ticket, AutoRenew)
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNotAcquired)
		time.Sleep(time.Second)
		_, err = l.TryLock(bg, "x", 0, AutoRenew)
		require.NoError(t, err)
	})
}

// Close releases an attached lock, and ends a Detach and an Attach in flight.
func TestCloseWithHandovers(t *testing.T) {
	for name, flt := range map[string]fault{"slow": slow(500 * time.Millisecond), "no reply": mute, "overtaken": overtaken(500 * time.Millisecond)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l, other := f.locker(), f.locker()
				_, x := f.detached(l, "x", time.Hour)
				_, y := f.detached(l, "y", time.Hour)
				attached, detaching := f.attached(other, bg, x, AutoRenew), f.acquired(other, bg, "z", AutoRenew)
				f.meet(flt, "attach", "detach")
				ended := make(chan error, 1)
				go func() {
					_, err := other.Attach(bg, y, AutoRenew)
					ended <- err
				}()
				detached := make(chan Ticket, 1)
				go func() {
					ticket, _ := detaching.Detach(bg, time.Hour)
					detached <- ticket
				}()
				synctest.Wait()
				err := other.Close()
				require.LessOrEqual(t, f.now(), 2*time.Second)
				if err != nil { // nil says that nothing may be granted any more: see the last lines
					require.NotEqual(t, "slow", name)
					require.ErrorContains(t, err, "may yet be granted")
				}
				require.ErrorIs(t, <-ended, ErrClosed)
				require.Equal(t, ErrClosed, attached.Err())
				require.Zero(t, f.left("x"))
				require.Zero(t, f.left("y"))
				if <-detached == "" {
					require.Zero(t, f.left("z"))
				} else {
					require.Positive(t, f.left("z"))
				}
				time.Sleep(10 * time.Second)
				require.Zero(t, f.left("x"))
				require.Zero(t, f.left("y"))
			})
		})
	}
}

func TestObservedHandover(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l, s := f.observed(withHandoff)
		s.l = nil // an attached lock has no place in a queue
		first := f.acquired(l, bg, "x", AutoRenew)
		p := f.try(l, bg, "x", WaitForever, AutoRenew)
		require.NoError(t, first.Unlock())
		k := p.granted(0)
		s.take()
		f.until(time.Second)
		ticket, err := k.Detach(bg, time.Minute)
		require.NoError(t, err)
		k = f.attached(l, bg, ticket, AutoRenew)
		f.attachLost(l, ticket)
		f.until(2 * time.Second)
		require.NoError(t, k.UnlockAfter(time.Minute))
		_, err = l.Attach(bg, "", AutoRenew)
		require.Error(t, err)
		require.Equal(t, []string{
			"o x released in x after 1s, token 257",
			"o start x", "o x acquired in x after 0s, token 257, handed over false",
			"o start x", "o x error in x after 0s, token 0, handed over false",
			"o x released in x after 1s, token 257",
		}, s.take())
	})
}

func TestTickets(t *testing.T) {
	id := store.NewTicketID(store.NewProcess())
	valid := ticket{claim: store.Claim{Name: "order:42 ☃", Owner: id}, token: 12345, first: 12300, minHold: time.Minute}
	text := string(valid.encode())
	parsed, err := Ticket(text).parse()
	require.NoError(t, err)
	require.Equal(t, valid, parsed)
	require.Equal(t, url.QueryEscape(text), text)
	inJSON, err := json.Marshal(text)
	require.NoError(t, err)
	require.Equal(t, `"`+text+`"`, string(inJSON))
	shared := valid
	shared.claim.Name = "x\x00r5123456789012345678" + "00"
	parsed, err = shared.encode().parse()
	require.NoError(t, err)
	require.Equal(t, shared, parsed)

	l := newLocker(nil, store.NewProcess(), config{lease: DefaultLease})
	invalid := func(text string) {
		t.Helper()
		_, err := l.Attach(bg, Ticket(text), AutoRenew)
		require.ErrorIs(t, err, errNoTicket, text)
		require.Less(t, len(err.Error()), 200)
	}
	for _, garbage := range []string{"", "1", "x", "11", "1AAAAAA", "ticket", strings.Repeat("1", 1<<16), "\x00", "1=", "☃", "2" + text[1:], " " + text, text + " ", text + "A"} {
		invalid(garbage)
	}
	for i := range text {
		invalid(text[:i])
		other := byte('A')
		if text[i] == other {
			other = 'B'
		}
		invalid(text[:i] + string(other) + text[i+1:])
	}
	for what, change := range map[string]func(*ticket){
		"the owner of a live lock": func(t *ticket) { t.claim.Owner = store.NewOwnerID(store.NewProcess()) },
		"another owner":            func(t *ticket) { t.claim.Owner = "@" + strings.Repeat("'", 32) },
		"no name":                  func(t *ticket) { t.claim.Name = "" },
		"a session":                func(t *ticket) { t.claim.Name = "\x005123456789012345678" },
		"a name that is too long":  func(t *ticket) { t.claim.Name = strings.Repeat("a", 256) },
		"a token out of range":     func(t *ticket) { t.token = t.first + store.TokenRange },
		"a negative minimum":       func(t *ticket) { t.minHold = -time.Microsecond },
	} {
		forged := valid
		change(&forged)
		_, err := l.Attach(bg, forged.encode(), AutoRenew)
		require.ErrorIs(t, err, errNoTicket, what)
	}
	_, err = base64.RawURLEncoding.DecodeString(text[1:])
	require.NoError(t, err)
}
