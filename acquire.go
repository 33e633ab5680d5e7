package mysqllock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A call is one TryLock in progress.
type call struct {
	l          *Locker
	ctx        context.Context
	name       string
	lease      time.Duration
	owner      *owner
	shared     bool            // the owner is from ctx, so other calls may acquire for it
	wait       time.Duration   // the time limit of the call
	noWait     bool            // one attempt
	timeout    <-chan struct{} // closed when the wait runs out; nil if it does not
	cutoff     <-chan struct{} // the same for a statement in flight
	cutoffTime time.Time       // when cutoff is closed; zero if it is not
	waiter     *waiter
	contention error // of the last attempt, if another statement on the row was in the way
	observed   *observed
}

func (l *Locker) tryLock(ctx context.Context, name string, wait, lease time.Duration, o *observed) (*Lock, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if lease != AutoRenew && lease < minLease {
		return nil, fmt.Errorf("%w: %v; want AutoRenew or at least %v", ErrInvalidLease, lease, minLease)
	}
	own, shared := ctx.Value(ownerKey{}).(*owner)
	if shared {
		if k, err := l.reenter(ctx, holdKey{own, name}, lease); k != nil || err != nil {
			return k, err
		}
	}
	c := &call{l: l, ctx: ctx, name: name, lease: lease, wait: wait, noWait: wait <= 0, owner: own, shared: shared, observed: o}
	if c.noWait {
		c.wait = noWaitTimeout
	}
	if !c.shared {
		c.owner = new(owner)
	}
	if ctx.Err() != nil {
		return nil, c.canceled()
	}
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.working.Done()
	if wait != WaitForever {
		// Closed rather than sent to, because they are received from more than once.
		timeout := make(chan struct{})
		c.timeout = timeout
		defer time.AfterFunc(c.wait, func() { close(timeout) }).Stop()
		if c.cutoff = timeout; c.wait < minTimeout {
			cut := make(chan struct{})
			c.cutoff = cut
			defer time.AfterFunc(minTimeout, func() { close(cut) }).Stop()
		}
		c.cutoffTime = time.Now().Add(max(c.wait, minTimeout))
	}
	return c.acquire()
}

func checkName(name string) error {
	if err := checkText(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidName, err)
	}
	return nil
}

// enter counts a call for which Close waits. It returns false after Close.
func (l *Locker) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.working.Add(1)
	}
	return !l.closed
}

// acquire waits to be the head of the name's queue, and then sends attempts until one is
// granted or the call ends.
func (c *call) acquire() (*Lock, error) {
	names := c.l.registry
	place, ok := names.join(c.name, c.owner, c.noWait)
	if !ok {
		// The head may have acquired the lock for our owner just now.
		if k, err := c.reenter(); k != nil || err != nil {
			return k, err
		}
		return nil, names.refusal(c.name)
	}
	c.waiter = place
	c.l.waiting.Add(1)
	defer c.l.waiting.Add(-1)
	if k, err := c.queue(); k != nil || err != nil {
		c.l.leaveQueue(place)
		return k, err
	}
	left := names.takeOffer(place)
	for pause, again := firstPause, false; ; {
		// An earlier hold of the owner may be lost, but not unlocked yet.
		if k, err := c.reenter(); k != nil || err != nil {
			c.l.releaseHandoff(left)
			c.l.leaveQueue(place)
			return k, err
		}
		if left != nil {
			if k := c.adopt(left); k != nil {
				return k, nil
			}
		}
		a := c.attempt(left, again)
		left = nil
		err := c.run(a)
		if err != nil {
			return nil, err
		}
		switch {
		case a.err != nil:
			a.undoUnknown()
			if !store.Transient(a.err) {
				c.l.leaveQueue(place)
				return nil, a.err
			}
			c.failed(a.err)
			if c.noWait && !store.Contended(a.err) && (store.OutcomeUnknown(a.err) || pause > 4*firstPause) {
				c.l.leaveQueue(place)
				return nil, fmt.Errorf("%w: %w", ErrUnavailable, a.err)
			}
			err = await(c, time.After(pause), c.timeout)
			pause = min(2*pause, 50*firstPause)
		case a.grant.Token > 0:
			if k, err := c.beginHold(a); k != nil || err != nil {
				return k, err
			}
			err = await(c, time.After(pause), c.timeout)
		case a.request.Replaces != "":
			// The row has another owner by now.
		case c.noWait && a.grant.Reserved:
			// The process for which the row is reserved takes it, or not, very soon.
			err = await(c, time.After(pause), c.timeout)
			pause = min(2*pause, store.ReservedFor)
		case c.noWait:
			err = ErrNotAcquired
		case a.grant.Locked:
			c.contention, again = nil, true
			names.answered(place, false)
			err = c.pauseOrWake(pause)
			pause = min(2*pause, 50*firstPause)
		case a.request.EnlistAs == 0 && names.enlists(place):
			again = true // and join the wait queue
		default:
			c.contention, pause, again = nil, firstPause, true
			err = c.sleep(a)
		}
		if err != nil {
			c.l.leaveQueue(place)
			return nil, err
		}
	}
}

// firstPause is the delay before a failed statement is sent again; each further failure
// doubles it.
const firstPause = 10 * time.Millisecond

// queue waits to be the head, unless the owner acquires the lock by another call.
func (c *call) queue() (*Lock, error) {
	for {
		select {
		case <-c.waiter.isHead:
			return nil, nil
		default:
		}
		if k, err := c.reenter(); k != nil || err != nil {
			return k, err
		}
		select {
		case <-c.waiter.isHead:
		case <-c.waiter.wake:
		case <-c.waiter.refused:
			// Unless the head acquired it for our owner.
			if k, err := c.reenter(); k != nil || err != nil {
				return k, err
			}
			return nil, ErrNotAcquired
		case <-c.ctx.Done():
			return nil, c.canceled()
		case <-c.timeout:
			return nil, c.timedOut()
		case <-c.l.done:
			return nil, ErrClosed
		}
	}
}

// await waits for ready, or returns why the call must end before.
func await[T any](c *call, ready <-chan T, timeout <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-c.ctx.Done():
		return c.canceled()
	case <-timeout:
		return c.timedOut()
	case <-c.l.done:
		return ErrClosed
	}
}

// pauseOrWake waits before the next attempt, unless the waiter is woken.
func (c *call) pauseOrWake(pause time.Duration) error {
	defer time.AfterFunc(pause, c.waiter.signal).Stop()
	return await(c, c.waiter.wake, c.timeout)
}

// sleep waits, as the head, until the row may be free.
func (c *call) sleep(a *attempt) error {
	left := a.grant.Remaining
	if a.grant.Reserved && a.request.EnlistAs != 0 {
		left = DefaultLease // the next holder's lease is unknown; a signal will come
	}
	c.l.registry.answered(c.waiter, false)
	c.l.registry.watch(c.waiter, left)
	defer c.l.registry.unwatch(c.waiter)
	return await(c, c.waiter.wake, c.timeout)
}

// reenter returns another handle if the owner of the call holds the lock, and an error if it
// has lost it; otherwise nil and nil.
func (c *call) reenter() (*Lock, error) {
	if !c.shared {
		return nil, nil
	}
	return c.l.reenter(c.ctx, c.key(), c.lease)
}

// reenter returns another handle if there is a hold of the key, and an error if that was
// lost or ctx has ended; otherwise nil and nil.
func (l *Locker) reenter(ctx context.Context, key holdKey, lease time.Duration) (*Lock, error) {
	l.mu.Lock()
	t := l.holds[key]
	if t == nil {
		l.mu.Unlock()
		return nil, nil
	}
	if lost := l.checkLoss(t); lost || t.ended != nil {
		err := t.ended
		l.mu.Unlock()
		l.finishLoss(t, lost)
		return nil, err
	}
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return nil, canceled(ctx)
	}
	var now time.Time
	if lease != AutoRenew {
		now = time.Now()
	}
	k := l.addHandle(ctx, t, lease, now)
	k.reentered = true
	l.watchdog.request(t.lease, t.request(), len(t.handles))
	l.reentered.Add(1)
	return k, nil
}

// run runs an attempt until its reply. If the call must end before, it returns why, and the
// attempt leaves the queue when its reply arrives.
//
// On a goroutine of its own, an attempt need not be cut off, but switching goroutines costs
// 10 % of an uncontended acquire and release.
func (c *call) run(a *attempt) error {
	var err error
	if a.inline {
		c.runInline(a)
		c.report(a)
		if err = c.ended(); err == nil || a.err != nil && !store.Transient(a.err) {
			return nil
		}
		a.l.working.Go(a.undo)
	} else {
		a.done = make(chan struct{})
		a.l.working.Go(a.run)
		if err = await(c, a.done, c.cutoff); err == nil || !a.detach() {
			return nil
		}
	}
	return err
}

// report records the reply to an attempt before its call ends.
func (c *call) report(a *attempt) {
	switch {
	case a.err != nil:
		c.failed(a.err)
	case a.grant.Token == 0:
		c.l.registry.probed(c.waiter, store.RowHeld, nil)
	}
}

// runInline runs the attempt on the caller's goroutine.
func (c *call) runInline(a *attempt) {
	if c.ctx.Done() != nil {
		defer context.AfterFunc(c.ctx, func() { time.AfterFunc(cancelGrace, a.cancel) })()
	}
	a.err = store.ErrPanic
	defer func() {
		if a.err == store.ErrPanic {
			a.undo()
		}
	}()
	a.send()
}

// ended returns why the call must end, or nil.
func (c *call) ended() error {
	select {
	case <-c.ctx.Done():
		return c.canceled()
	case <-c.cutoff:
		return c.timedOut()
	case <-c.l.done:
		return ErrClosed
	default:
		return nil
	}
}

// canceled is the error of a call whose context has ended.
func (c *call) canceled() error {
	if trouble, outage := c.lastErr(); outage {
		return fmt.Errorf("%w: %w: %w", ErrUnavailable, causeOf(c.ctx), trouble)
	}
	return canceled(c.ctx)
}

// canceled is the error of a call whose context has ended, while nothing is known to be
// wrong with the database.
func canceled(ctx context.Context) error { return fmt.Errorf("%w: %w", ErrNotAcquired, causeOf(ctx)) }

func causeOf(ctx context.Context) error {
	cause := context.Cause(ctx)
	if err := ctx.Err(); !errors.Is(cause, err) {
		cause = fmt.Errorf("%w (%w)", cause, err)
	}
	return cause
}

// timedOut is the error of a call whose wait has run out.
func (c *call) timedOut() error {
	trouble, outage := c.lastErr()
	if trouble == nil {
		trouble = c.contention
	}
	switch {
	case outage:
		return fmt.Errorf("%w: %w", ErrUnavailable, trouble)
	case trouble != nil:
		return fmt.Errorf("%w: %w", ErrNotAcquired, trouble)
	}
	return ErrNotAcquired
}

// lastErr returns why the database has not reported who holds the lock; nil if it has. That
// is an outage, unless the database replies, but slowly.
func (c *call) lastErr() (err error, outage bool) {
	if c.waiter == nil {
		return nil, false
	}
	v := c.l.registry.lastErr(c.waiter)
	end := time.Now().Add(probeWait)
	if latest := c.cutoffTime.Add(min(c.wait-minTimeout, 0) + overrun); latest.After(end) && c.ctx.Err() == nil {
		end = latest
	}
	for v.probing && time.Now().Before(end) {
		time.Sleep(probeWait / 20)
		v = c.l.registry.lastErr(c.waiter)
	}
	return v.err, v.err != nil && !v.slow
}

// failed records an attempt that failed with a transient error.
func (c *call) failed(err error) {
	c.contention = nil
	if store.Contended(err) {
		c.contention = err
	}
	c.l.registry.failed(c.waiter, err)
}

func (c *call) key() holdKey { return holdKey{c.owner, c.name} }
