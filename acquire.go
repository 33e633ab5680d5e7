package mysqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/queue"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A waiter is a call's place in the wait queue of its name.
type waiter = queue.Waiter[outage.Evidence, *handoff]

// A request is what a call asks for.
type request struct {
	name        string
	mode        store.Mode
	limit       int // of permits; for store.Permit only
	wait, lease time.Duration
}

// A call is one request in progress.
type call struct {
	request    // wait is noWaitTimeout for a call that does not wait
	l          *Locker
	ctx        context.Context
	queueName  string // key of the row that has the name's wait queue
	owner      *owner
	reentrant  bool            // the owner is from ctx, so other calls may acquire the lock for it
	noWait     bool            // the call makes only one attempt
	timeout    <-chan struct{} // closed when the wait runs out; nil for WaitForever
	cutoff     <-chan struct{} // closed when the call stops waiting for a statement in flight; nil for WaitForever
	cutoffTime time.Time       // when cutoff is closed; zero for WaitForever
	waiter     *waiter
	again      bool               // an attempt was refused
	claim      store.Claim        // by which the call has claimed the name while others hold it shared; zero if it has not
	granted    store.Claim        // of a row that a release has granted to this process, and whose owner the next attempt replaces; zero if there is none
	pause      background.Backoff // before the next attempt
	contention error              // of the last attempt, if another statement on the row blocked it; otherwise nil
	observed   *observation       // nil if there is no observer
	holder     string             // label from WithHolder; "" if not set
}

// check returns an error if the request is invalid.
func (r request) check() error {
	if err := checkName(r.name); err != nil {
		return err
	}
	if err := checkLease(r.lease); err != nil {
		return err
	}
	if r.mode == store.Permit && (r.limit < 1 || r.limit > store.MaxPermits) {
		return fmt.Errorf("%w: %d; want 1 to %d", ErrInvalidLimit, r.limit, store.MaxPermits)
	}
	return nil
}

func (l *Locker) tryAcquire(ctx context.Context, r request, o *observation) (*Lock, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	// Re-entering a lock and joining a share need no call on the heap.
	inMemory := call{observed: o}
	if err := inMemory.init(ctx, l, r); err != nil {
		return nil, err
	}
	if k, err := inMemory.reenter(); k != nil || err != nil {
		return k, err
	}
	if k := inMemory.joinShare(false); k != nil {
		return k, nil
	}
	c := new(call)
	*c = inMemory
	if c.noWait {
		c.wait = noWaitTimeout
	}
	if ctx.Err() != nil {
		return nil, c.canceled()
	}
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.working.Done()
	if c.wait != WaitForever {
		// A timer's channel would not do: a call may receive from timeout more than once.
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

// init sets the fields that are known from the start.
func (c *call) init(ctx context.Context, l *Locker, r request) (err error) {
	c.request, c.l, c.ctx = r, l, ctx
	c.queueName, c.noWait = store.QueueName(r.mode, r.name), r.wait <= 0
	own, found := ctx.Value(ownerKey{}).(*owner)
	if !found {
		own = new(owner)
	}
	c.owner, c.reentrant = own, found && r.mode != store.Permit
	c.holder, err = holderOf(ctx)
	return err
}

func checkName(name string) error {
	if err := checkText(name); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidName, err)
	}
	return nil
}

func checkLease(lease time.Duration) error {
	if lease != AutoRenew && lease < minLease {
		return fmt.Errorf("%w: %v; want AutoRenew or at least %v", ErrInvalidLease, lease, minLease)
	}
	return nil
}

// checkFixedLease is checkLease for a lease that must not be AutoRenew.
func checkFixedLease(lease time.Duration) error {
	if lease < minLease {
		return fmt.Errorf("%w: %v; want at least %v", ErrInvalidLease, lease, minLease)
	}
	return nil
}

// enter registers a call, so that Close waits for it. It returns false after Close.
func (l *Locker) enter() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed() {
		return false
	}
	l.working.Add(1)
	return true
}

// acquire waits until the call is the head of the name's queue. It then makes attempts until one
// is granted or the call must end.
func (c *call) acquire() (*Lock, error) {
	l := c.l
	w, evidence := l.queues.Join(queue.Request{Name: c.queueName, Owner: c.owner, NoWait: c.noWait, Shared: c.mode == store.Shared})
	if w == nil {
		// The head may have just acquired the lock for the same owner.
		if k, err := c.reenter(); k != nil || err != nil {
			return k, err
		}
		if err := evidence.LookErr(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return nil, ErrNotAcquired
	}
	c.waiter = w
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	if k, err := c.queue(); k != nil || err != nil {
		l.leaveQueue(w)
		return k, err
	}
	offer := w.TakeOffer()
	for c.pause = firstBackoff; ; {
		k, err := c.reenter() // the owner may have a hold that is lost but not yet unlocked
		if k == nil && err == nil {
			k, err = c.joinShareAsHead()
		}
		if k != nil || err != nil {
			l.releaseHandoff(offer)
			c.leave()
			return k, err
		}
		if offer != nil {
			if k := c.adopt(offer); k != nil {
				return k, nil
			}
		} else if k, err := c.takeGrant(); k != nil || err != nil {
			return k, err
		}
		a := c.attempt(offer)
		offer = nil
		if err := c.run(a); err != nil {
			return nil, err
		}
		if a.err == nil && a.grant.Token > 0 {
			if k, err := c.beginHold(a); k != nil || err != nil {
				return k, err
			}
		}
		if err := c.waitAfter(a); err != nil {
			c.leave()
			return nil, err
		}
	}
}

// leave leaves the queue. If the call has claimed the name, it releases the claim first.
func (c *call) leave() {
	if c.granted != (store.Claim{}) {
		c.l.waker.GiveBack(c.granted)
	}
	claim := c.claim
	if claim == (store.Claim{}) {
		c.l.leaveQueue(c.waiter)
		return
	}
	c.l.undo(func() {
		c.l.releaseClaim(claim)
		c.l.leaveQueue(c.waiter)
	})
}

// undo calls fn, which releases what a call that returns an error has acquired. If the database does
// not reply in time, fn goes on in the background.
func (l *Locker) undo(fn func()) {
	done := make(chan struct{})
	l.working.Go(func() {
		defer close(done)
		fn()
	})
	select {
	case <-done:
	case <-time.After(maxOverrun):
	}
}

// releaseClaim releases the claim of a name that was not granted.
func (l *Locker) releaseClaim(claim store.Claim) {
	if err := l.releaseBy(time.Now().Add(unlockTimeout), claim, store.ClaimLease, store.MinHold{}, ""); err != nil {
		l.log.Debug("mysqllock: release of a claim, trying again", "name", store.NameOf(claim.Name), "err", err)
	}
	l.queues.Wake(claim.Name)
}

// firstPause is the delay before a failed statement is sent again; each further failure
// doubles it.
const firstPause = 10 * time.Millisecond

// maxGuardPause is the longest delay between the attempts of a request that waits only for an open
// guard, whose shared hold has ended.
const maxGuardPause = 100 * time.Millisecond

var firstBackoff = background.Backoff{Delay: firstPause, Max: 50 * firstPause}

// waitAfter is called after an attempt that led to no hold. It waits until another attempt may
// succeed, and returns an error if the call must end.
func (c *call) waitAfter(a *attempt) error {
	switch {
	case a.err != nil:
		a.undoUnknown()
		c.claim = store.Claim{}
		if !store.Transient(a.err) {
			return a.err
		}
		c.failed(a.err)
		if c.noWait && !store.Contended(a.err) && (store.OutcomeUnknown(a.err) || c.pause.Delay > 4*firstPause) {
			return fmt.Errorf("%w: %w", ErrUnavailable, a.err)
		}
		return await(c, time.After(c.pause.Next()), c.timeout)
	case a.grant.Token > 0: // it came too late
		c.claim = store.Claim{} // beginHold releases it
		return await(c, time.After(c.pause.Delay), c.timeout)
	case a.request.Replaces != "": // the row has another owner
		return nil
	case a.grant.Granted:
		return c.findGrant()
	case a.grant.Claimed:
		c.contention, c.again, c.claim = nil, true, a.request.Claim
		c.l.waker.Claimed()
		if a.grant.Locked { // by a guard, whose end wakes nobody
			c.contention = store.ErrRowLocked
			a.grant.Remaining = min(c.pause.Next(), maxGuardPause)
		} else {
			c.pause = firstBackoff
		}
		defer time.AfterFunc(a.grant.Remaining, c.waiter.Wake).Stop()
		return c.sleep(a)
	case c.noWait && a.grant.Reserved:
		// The reservation is short.
		err := await(c, time.After(c.pause.Next()), c.timeout)
		c.pause.Delay = min(c.pause.Delay, store.ReservedFor)
		return err
	case c.noWait:
		return ErrNotAcquired
	case a.grant.Locked:
		c.contention, c.again = nil, true
		c.refused()
		defer time.AfterFunc(c.pause.Next(), c.waiter.Wake).Stop()
		return await(c, c.waiter.Woken, c.timeout)
	case a.request.EnlistAs == 0 && c.l.waker.Signals():
		c.again = true // and join the wait queue
		return nil
	default:
		c.contention, c.pause, c.again = nil, firstBackoff, true
		return c.sleep(a)
	}
}

// answered records that the database granted or refused an attempt of w. again means that it had
// refused an earlier one.
func (l *Locker) answered(w *waiter, granted, again bool) {
	l.outages.Answered(w.State, w, granted)
	l.waker.Answered(w.Name, granted, again)
}

// refused records that the database refused an attempt, and that the call waits.
func (c *call) refused() {
	c.l.answered(c.waiter, false, true)
	c.waiter.Admit(false)
}

// queue waits until the call is the head. If its owner acquires the lock by another call
// meanwhile, queue returns a handle.
func (c *call) queue() (*Lock, error) {
	for refused := false; ; {
		select {
		case <-c.waiter.Head:
			return nil, nil
		default:
		}
		if k, err := c.reenter(); k != nil || err != nil {
			return k, err
		}
		if refused {
			return nil, ErrNotAcquired
		}
		select {
		case <-c.waiter.Head:
		case <-c.waiter.Woken:
		case <-c.waiter.Refused:
			refused = true // but the head may have acquired the lock for the same owner
		case <-c.ctx.Done():
			return nil, c.canceled()
		case <-c.timeout:
			return nil, c.timedOut()
		case <-c.l.done:
			return nil, ErrClosed
		}
	}
}

// await waits for ready. It returns an error if the call must end first.
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

// sleep waits, for the head of the queue, until the row may be free. It misses no wake-up: one
// that has arrived since the last attempt was sent is still in Woken.
func (c *call) sleep(a *attempt) error {
	left := a.grant.Remaining
	if (a.grant.Reserved || a.grant.HandedOff) && a.request.EnlistAs != 0 {
		left = DefaultLease // the next holder's lease is unknown; a signal will come
	}
	c.refused()
	c.l.waker.Watch(c.queueName, left, c.waiter.State.Looked)
	defer c.l.waker.Unwatch(c.queueName)
	return await(c, c.waiter.Woken, c.timeout)
}

// reenter returns another handle if the owner of the call holds the lock, and an error if the
// owner has lost it. Otherwise it returns nil, nil.
func (c *call) reenter() (*Lock, error) {
	if !c.reentrant {
		return nil, nil
	}
	l := c.l
	l.mu.Lock()
	defer l.unlockMu()
	h := l.holds[c.key()]
	if h == nil {
		return nil, nil
	}
	if l.checkLoss(h); h.ended != nil {
		return nil, h.ended
	}
	if c.ctx.Err() != nil {
		return nil, l.canceled(c.ctx)
	}
	if c.mode == store.Exclusive && (h.share != nil || h.downgraded != nil) {
		return nil, ErrUpgrade
	}
	var now time.Time
	if c.lease != AutoRenew {
		now = time.Now()
	}
	k := c.addHandle(h, now)
	k.reentered = true
	l.requestsChanged(h)
	l.reentered.Add(1)
	return k, nil
}

// run runs an attempt until its reply arrives. If the call must end before that, run returns the
// reason; the attempt then leaves the queue when its reply arrives.
//
// The call can leave an attempt that has its own goroutine without cutting it off. But switching
// goroutines costs 10 % of an uncontended acquire and release.
func (c *call) run(a *attempt) error {
	var err error
	if a.inline {
		c.runInline(a)
		if err = c.ended(); err == nil || a.err != nil && !store.Transient(a.err) {
			return nil
		}
		a.l.working.Go(a.undo)
	} else {
		a.done = make(chan struct{})
		a.l.working.Go(a.run)
		if err = await(c, a.done, c.cutoff); err == nil || !a.detach(a.cutAfter(detachedTimeout)) {
			return nil
		}
	}
	return err
}

// runInline runs the attempt on the caller's goroutine. It records what the reply shows, in case the
// call must end.
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
	switch {
	case a.err != nil:
		c.failed(a.err)
	case a.grant.Token == 0:
		c.l.outages.Probed(c.waiter.State, c.waiter, store.RowHeld, nil)
	}
}

// key returns the key of the hold. Permits are not re-entrant, so each has an owner of its own.
func (c *call) key() holdKey {
	if c.mode == store.Permit {
		return holdKey{new(owner), c.queueName}
	}
	return holdKey{c.owner, c.queueName}
}
