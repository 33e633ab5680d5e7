package mysqllock

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/fakestore"
	"github.com/mysqllock/mysqllock/internal/store"
)

func (f side) AcquireAll(ctx context.Context, req store.BatchRequest) (store.BatchGrant, error) {
	g, sent, err := send(ctx, f.fakeRepo, "batch", req.Names, func(now time.Time) (g store.BatchGrant) {
		for _, name := range req.Names {
			if r := f.rows[name]; f.keptUntil(r).After(now) || r.waiters != "" {
				break
			}
			g.Granted++
		}
		f.tokens += store.TokenRange
		g.Token = f.tokens
		for _, name := range req.Names[:g.Granted] {
			f.rows[name] = fakeRow{owner: req.Owner, holds: 1, token: g.Token, expires: now.Add(req.Lease), freed: f.rows[name].freed}
		}
		return g
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		return store.BatchGrant{}, err
	}
	f.terms += g.Granted
	g.Sent = sent
	return g, err
}

// A batch that fails leaves nothing behind, and each lock is then acquired by itself.
func TestBatchFails(t *testing.T) {
	for name, flt := range map[string]fault{"refused": fails(errDeadlock), "reply lost": cut} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker(withSignal)
				f.meet(first(1, flt, none), "batch")
				s, err := l.TryLockAll(bg, []string{"c", "b", "a"}, 10*time.Second, AutoRenew)
				require.NoError(t, err)
				for _, name := range []string{"a", "b", "c"} {
					require.NoError(t, s.Lock(name).Err())
				}
				require.NoError(t, s.Unlock())
				time.Sleep(time.Minute)
				for _, name := range []string{"a", "b", "c"} {
					require.Zero(t, f.left(name))
				}
				require.EqualValues(t, 3, l.Stats().Released)
			})
		})
	}
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.meet(fails(errDenied), "batch")
		_, err := l.TryLockAll(bg, []string{"a", "b"}, time.Second, AutoRenew)
		require.ErrorIs(t, err, errDenied)
		require.ErrorContains(t, err, `acquire "a"`)
	})
}

// A batch without a reply does not keep its caller beyond the wait, and is undone when the
// reply arrives.
func TestBatchWithoutReply(t *testing.T) {
	for name, c := range map[string]struct {
		wait   time.Duration
		end    func(cancel context.CancelCauseFunc, l *Locker)
		limit  time.Duration
		wanted error
	}{
		"one attempt": {0, nil, noWaitTimeout, ErrUnavailable},
		"wait":        {5 * time.Second, nil, 5 * time.Second, ErrUnavailable},
		"ctx":         {WaitForever, func(cancel context.CancelCauseFunc, _ *Locker) { cancel(context.Canceled) }, time.Second, context.Canceled},
		"Close":       {WaitForever, func(_ context.CancelCauseFunc, l *Locker) { go l.Close() }, time.Second, ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l := f.locker()
				for _, name := range []string{"a", "b"} {
					k, err := l.TryLock(bg, name, 0, AutoRenew)
					require.NoError(t, err)
					require.NoError(t, k.Unlock())
				}
				f.meet(late(c.limit+500*time.Millisecond), "batch")
				ctx, cancel := context.WithCancelCause(bg)
				defer cancel(nil)
				if c.end != nil {
					time.AfterFunc(time.Second, func() { c.end(cancel, l) })
				}
				start := time.Now()
				_, err := l.TryLockAll(ctx, []string{"a", "b"}, c.wait, AutoRenew)
				require.ErrorIs(t, err, c.wanted)
				require.ErrorContains(t, err, `acquire "a"`)
				require.LessOrEqual(t, time.Since(start), c.limit+100*time.Millisecond)
				time.Sleep(time.Minute)
				require.Zero(t, f.left("a"))
				require.Zero(t, f.left("b"))
				require.Zero(t, l.Stats().Held)
			})
		})
	}
}

// A gappyStore grants the first and the last name of a set, as if the row between them had been locked for
// a moment. Its releases are slower than its acquires.
type gappyStore struct{ *fakestore.Store }

func (s gappyStore) AcquireAll(ctx context.Context, req store.BatchRequest) (store.BatchGrant, error) {
	first, last := req, req
	first.Names, last.Names = req.Names[:1], req.Names[len(req.Names)-1:]
	g, err := s.Store.AcquireAll(ctx, last)
	if err != nil || g.Granted == 0 {
		return g, err
	}
	g, err = s.Store.AcquireAll(ctx, first)
	g.Unwanted = last.Claims(1)
	return g, err
}

func (s gappyStore) Acquire(ctx context.Context, req store.AcquireRequest) (store.Grant, error) {
	time.Sleep(time.Millisecond)
	return s.Store.Acquire(ctx, req)
}

func (s gappyStore) ReleaseAll(ctx context.Context, cs []store.Claim) (int64, store.Process, error) {
	time.Sleep(4 * time.Millisecond)
	return s.Store.ReleaseAll(ctx, cs)
}

// A set that does not wait is not refused because of a name that its own batch was granted and did not use.
func TestBatchWithAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		self := store.NewProcess()
		l := onStore(t, self, gappyStore{fakestore.NewTable().NewStore(self)})
		set, err := l.TryLockAll(bg, []string{"a", "b", "c"}, 0, AutoRenew)
		require.NoError(t, err)
		require.NoError(t, set.Unlock())
	})
}

// A set that did not wait is returned, and its Context has ended, if a lock that it re-entered is lost.
func TestSetOfLostLocks(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		owner := WithOwner(bg)
		a, err := l.TryLock(owner, "a", 0, AutoRenew)
		require.NoError(t, err)
		s.slow.Store(int64(time.Second))
		time.AfterFunc(time.Second/2, func() { l.watchdog.OwnerChanged(a.hold.lease.Load().Claim) })
		set, err := l.TryLockAll(owner, []string{"a", "b", "c"}, time.Minute, AutoRenew)
		require.NoError(t, err)
		require.ErrorIs(t, context.Cause(set.Context()), ErrLost)
	})
}

// A batch whose reply is late is not refused because of the names that it has taken itself.
func TestBatchWithALateReply(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		f.meet(slow(2*time.Second), "batch")
		_, err := l.TryLockAll(bg, []string{"a", "b"}, 0, AutoRenew)
		require.ErrorIs(t, err, ErrUnavailable)
		require.NotErrorIs(t, err, ErrNotAcquired)
		time.Sleep(time.Minute)
		require.Zero(t, f.left("a"))
		require.Zero(t, f.left("b"))
	})
}

// While the set waits for a name, fixed leases of the others are kept; when it has all, they
// end together, and by themselves.
func TestFixedLeasesOfASet(t *testing.T) {
	for _, lease := range []time.Duration{5 * time.Second, 500 * time.Millisecond} {
		t.Run(lease.String(), func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fakeRepo) {
				l, other := f.locker(withSignal), f.locker(withSignal)
				k, err := other.TryLock(bg, "b", 0, AutoRenew)
				require.NoError(t, err)
				time.AfterFunc(time.Hour, func() { k.Unlock() })
				s, err := l.TryLockAll(bg, []string{"a", "b", "c"}, WaitForever, lease)
				require.NoError(t, err)
				require.GreaterOrEqual(t, f.now(), time.Hour)
				time.Sleep(lease * 4 / 5)
				require.NoError(t, s.Err())
				time.Sleep(lease / 5)
				synctest.Wait()
				require.ErrorIs(t, s.Err(), ErrLost)
				require.ErrorIs(t, context.Cause(s.Context()), ErrLost)
				time.Sleep(100 * time.Millisecond)
				for _, name := range []string{"a", "b", "c"} {
					require.Zero(t, f.left(name))
				}
				require.ErrorIs(t, s.Unlock(), ErrLost)
			})
		})
	}
}

// A lock that is lost while the set waits for another ends the call.
func TestLossWhileASetWaits(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withSignal)
		f.take("b", time.Hour)
		time.AfterFunc(30*time.Minute, func() { f.take("a", 2*time.Hour) })
		_, err := l.TryLockAll(bg, []string{"a", "b", "c"}, WaitForever, AutoRenew)
		require.ErrorIs(t, err, ErrLost)
		require.ErrorContains(t, err, `acquire "a"`)
		synctest.Wait()
		require.Zero(t, f.left("b"))
		require.Zero(t, f.left("c"))
	})
}

// The wait of a set is for all its locks together.
func TestWaitOfASet(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker(withSignal)
		f.take("a", 3*time.Second)
		f.take("b", time.Hour)
		_, err := l.TryLockAll(bg, []string{"a", "b"}, 5*time.Second, AutoRenew)
		require.ErrorIs(t, err, ErrNotAcquired)
		require.ErrorContains(t, err, `acquire "b"`)
		require.Less(t, f.now(), 6*time.Second)
	})
}

// A lock of a batch for which its owner has a hold by now is released once.
func TestBatchBesideAHoldOfItsOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		l := f.locker()
		ctx := WithOwner(bg)
		z := f.acquired(l, ctx, "z", AutoRenew)
		f.meet(late(time.Second), "batch")
		go func() {
			time.Sleep(time.Second / 2)
			l.mu.Lock()
			l.holds[holdKey{z.hold.owner, "b"}] = z.hold
			l.mu.Unlock()
		}()
		s, err := l.TryLockAll(ctx, []string{"a", "b", "c"}, 10*time.Second, AutoRenew)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Zero(t, f.left("b"))
		f.mu.Lock()
		assert.Equal(t, 3, f.terms, "a, c and z")
		f.mu.Unlock()
		require.NoError(t, s.Unlock())
		require.NoError(t, z.Unlock())
	})
}

// A name that another goroutine of its owner unlocks as a set re-enters it is not waited for.
func TestSetBesideAnUnlockOfItsOwner(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fakeRepo) {
		var unlock func() error
		l := f.locker(withHandoff, WithObserver(Observer{AcquireStart: func(ctx context.Context, name string) context.Context {
			if unlock != nil && name == "b" {
				require.NoError(t, unlock())
				unlock = nil
			}
			return ctx
		}}))
		owner := WithOwner(bg)
		k := f.acquired(l, owner, "b", AutoRenew)
		next := f.try(l, bg, "b", WaitForever, AutoRenew)
		unlock = k.Unlock
		s, err := l.TryLockAll(owner, []string{"a", "b"}, WaitForever, AutoRenew)
		require.NoError(t, err)
		require.Nil(t, unlock)
		require.NoError(t, s.Err())
		require.NoError(t, s.Unlock())
		next.wait()
		require.NoError(t, next.err)
		require.NoError(t, next.lock.Unlock())
	})
}

// A set waits behind a call of its process for one of the names, which has not been answered.
func TestBatchBehindACall(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, s := locker()
		s.late.Store(int64(time.Second))
		errs := make(chan error)
		go func() {
			k, err := l.TryLock(bg, "a", time.Minute, AutoRenew)
			if err == nil {
				err = k.Unlock()
			}
			errs <- err
		}()
		time.Sleep(100 * time.Millisecond)
		set, err := l.TryLockAll(bg, []string{"a", "b"}, time.Minute, AutoRenew)
		require.NoError(t, err)
		require.NoError(t, set.Lock("a").Unlock())
		require.NoError(t, <-errs)
		require.NoError(t, set.Unlock())
	})
}

// The Context of a set ends with Unlock, even after Close, and even if all its locks were unlocked on
// their own before that.
func TestUnlockOfASetAfterClose(t *testing.T) {
	onFakeStore(t, func(t *testing.T, locker func() (*Locker, *faultyStore)) {
		l, _ := locker()
		set, err := l.TryLockAll(bg, []string{"a", "b"}, 0, AutoRenew)
		require.NoError(t, err)
		require.NoError(t, set.Lock("a").Unlock())
		require.NoError(t, set.Lock("b").Unlock())
		require.NoError(t, l.Close())
		require.ErrorIs(t, set.Unlock(), ErrClosed)
		require.Equal(t, ErrClosed, context.Cause(set.Context()))
	})
}
