package mysqllock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/queue"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A LockSet contains the locks that one call of [Locker.TryLockAll] acquired. Each needs one
// [LockSet.Unlock]. It is safe for concurrent use.
type LockSet struct {
	locker   *Locker
	locks    []*Lock // sorted by name
	ctx      context.Context
	cancel   context.CancelCauseFunc
	unlocked atomic.Bool
}

// TryLockAll acquires the locks of all names, or none of them, within one wait. Duplicates count
// once; at most 800 different names are allowed. See [Locker.TryLock] for wait, lease and ctx. All
// locks get the same owner, which is that of ctx or a new one. Locks that this owner holds already
// are re-entered.
//
// Callers of TryLockAll never deadlock with each other, in whatever order they list the names: a
// caller that waits for a name holds only names that sort before it, apart from those that its
// owner held before the call. If all names are free, TryLockAll sends at most two statements,
// whatever their number. While it waits for a name, it keeps the locks that it has acquired; fixed
// leases begin when the last lock is acquired.
//
// It returns the errors of TryLock, with the name of the lock that it could not acquire, and
// [ErrLost] if a lock was lost while it waited for another one. After an error, the locks that it
// had acquired are released; if the database does not reply within 100 ms, in the background.
func (l *Locker) TryLockAll(ctx context.Context, names []string, wait, lease time.Duration) (*LockSet, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	switch {
	case len(names) == 0:
		return nil, errors.New("mysqllock: acquire all: no names")
	case len(names) > store.BatchSize:
		return nil, fmt.Errorf("mysqllock: acquire all: %d names; the limit is %d", len(names), store.BatchSize)
	}
	c := &setCall{requested: lease, began: time.Now(), names: names}
	err := c.init(ctx, l, request{wait: wait, lease: lease})
	for _, name := range names {
		if err := cmp.Or(checkName(name), checkLease(lease)); err != nil {
			return nil, c.failAt(name, err)
		}
	}
	if err != nil {
		return nil, c.fail(err)
	}
	if !l.enter() {
		return nil, c.fail(ErrClosed)
	}
	defer l.working.Done()
	if !c.reentrant {
		c.ctx = context.WithValue(ctx, ownerKey{}, c.owner)
	}
	if err := c.acquireAll(); err != nil {
		l.undo(func() { l.unlockAll(c.locks) })
		return nil, err
	}
	return c.set(), nil
}

// Lock returns the handle for a name, or nil if the name is not in the set. The handle may be
// unlocked on its own; from then on, the set ignores it.
func (s *LockSet) Lock(name string) *Lock {
	i, found := slices.BinarySearchFunc(s.locks, name, func(k *Lock, name string) int { return cmp.Compare(k.Name(), name) })
	if !found {
		return nil
	}
	return s.locks[i]
}

// Context returns the context that was passed to TryLockAll, with the owner added. It ends when
// that context ends, when one of the locks is lost (cause [ErrLost]), when the set is unlocked
// (cause [ErrNotHeld]), or when the Locker is closed (cause [ErrClosed]).
func (s *LockSet) Context() context.Context { return s.ctx }

// Err returns nil if the leases of all locks can be trusted at this moment. Otherwise it returns
// [ErrLost], [ErrNotHeld] if the set was unlocked, or [ErrClosed]. It never blocks on the database.
func (s *LockSet) Err() error {
	all := ErrNotHeld
	for _, k := range s.locks {
		switch err := k.Err(); err {
		case nil:
			all = nil
		case ErrNotHeld:
		default:
			return err
		}
	}
	return all
}

// Unlock unlocks all locks of the set and ends its Context. It releases them with one statement,
// and blocks as [Lock.Unlock] does.
//
// It returns nil on success; [ErrNotHeld] if the set was unlocked before; [ErrClosed] after
// Close; otherwise the errors of [Lock.Unlock] for each lock, joined.
func (s *LockSet) Unlock() error {
	var err error
	if s.unlocked.Swap(true) {
		err = ErrNotHeld
	}
	if s.locker.isClosed() {
		err = ErrClosed
	}
	s.cancel(cmp.Or(err, ErrNotHeld))
	if err != nil {
		return opError("unlock", s.locks[0].Name(), err)
	}
	return s.locker.unlockAll(s.locks)
}

// A setCall is one TryLockAll in progress. It acquires the names in sorted order.
type setCall struct {
	call                    // without a name; ctx has the owner, and lease is AutoRenew once the call has waited for a name
	requested time.Duration // the lease of the locks when all are acquired
	began     time.Time
	names     []string // not acquired yet
	locks     []*Lock
	waited    bool // for a name
}

func (c *setCall) acquireAll() error {
	if c.reentrant {
		if err := c.reenterAll(); err != nil {
			return err
		}
	}
	for len(c.names) > 0 {
		if len(c.names) > 1 {
			if err := c.acquireFree(); err != nil {
				return c.fail(err)
			}
		}
		if len(c.names) > 0 {
			if err := c.acquireNext(); err != nil {
				return err
			}
		}
	}
	return c.finish()
}

// reenterAll re-enters the locks that the owner holds already. It sends nothing, and never waits: a
// lock that another goroutine of the owner unlocks meanwhile stays in c.names.
func (c *setCall) reenterAll() error {
	var others []string
	for _, name := range c.names {
		k, err := c.one(name).reenter()
		if k == nil && err == nil {
			others = append(others, name)
			continue
		}
		if k, err = c.l.acquireEnded("acquire", name, k, err, c.observe(name)); err != nil {
			return err
		}
		c.locks = append(c.locks, k)
	}
	c.names = others
	return nil
}

// one returns a call for one of the names.
func (c *setCall) one(name string) *call {
	one := c.call
	one.name, one.queueName = name, name
	return &one
}

// acquireNext acquires the first of the remaining names with TryLock, which waits, unlike a batch.
func (c *setCall) acquireNext() error {
	if len(c.locks) > 0 || len(c.names) > 1 {
		c.waited = true
		c.setLease(AutoRenew)
	}
	k, err := c.l.TryLock(c.ctx, c.names[0], c.left(), c.lease)
	if err == nil {
		c.locks, c.names = append(c.locks, k), c.names[1:]
	}
	return err
}

// left returns what is left of the wait.
func (c *setCall) left() time.Duration {
	if c.wait <= 0 || c.wait == WaitForever {
		return c.wait
	}
	return max(c.wait-time.Since(c.began), time.Millisecond)
}

// setLease changes the lease that the call requests, and that of the locks acquired so far, which is
// then counted from now.
func (c *setCall) setLease(length time.Duration) {
	if c.lease == length {
		return
	}
	c.lease = length
	now := time.Now()
	r := requestOf(length, now)
	l := c.l
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range c.locks {
		k.requested = r
		// Pass makes the lease end in time even if the row has a longer one.
		if h := k.hold; r.Auto || len(h.handles) > 1 || !l.watchdog.Pass(h.lease.Load(), r, length, h, now) {
			l.requestsChanged(h)
		}
	}
}

// finish ends the AutoRenew of a call that has waited, and returns an error if a lock was lost
// meanwhile.
func (c *setCall) finish() error {
	if !c.waited {
		return nil
	}
	c.setLease(c.requested)
	for _, k := range c.locks {
		if err := k.Err(); err != nil {
			return opError("acquire", k.Name(), err)
		}
	}
	return nil
}

// fail reports the error of a batch as that of the first of the remaining names.
func (c *setCall) fail(err error) error { return c.failAt(c.names[0], err) }

// failAt reports the error of one name to the observers, and counts it.
func (c *setCall) failAt(name string, err error) error {
	_, err = c.l.acquireEnded("acquire", name, nil, err, c.observe(name))
	return err
}

// observe reports the start of an acquire to the observers.
func (c *setCall) observe(name string) *observation {
	o := c.l.observers.acquireStart(c.ctx, name, store.Exclusive)
	if o != nil {
		o.began = c.began
	}
	return o
}

func (c *setCall) set() *LockSet {
	slices.SortFunc(c.locks, func(a, b *Lock) int { return cmp.Compare(a.Name(), b.Name()) })
	s := &LockSet{locker: c.l, locks: c.locks}
	s.ctx, s.cancel = context.WithCancelCause(c.ctx)
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	for _, k := range s.locks {
		if k.set = s; k.ended != nil {
			s.cancel(k.ended)
		}
	}
	return s
}

// acquireFree acquires the remaining names in order, up to the first that is not free or for which
// this process already waits. It returns an error if the call must end. After a transient error it
// returns nil, and acquireNext then finds out whether the database replies.
func (c *setCall) acquireFree() error {
	if c.ctx.Err() != nil {
		return c.l.canceled(c.ctx)
	}
	b := c.join()
	if len(b.calls) < 2 {
		b.leave(0)
		return nil
	}
	first := b.calls[0]
	if c.wait != WaitForever {
		first.wait = c.left()
		if c.wait <= 0 {
			first.wait = noWaitTimeout - time.Since(c.began)
		}
		limit := max(first.wait, minTimeout)
		cutoff := make(chan struct{})
		first.cutoff, first.cutoffTime = cutoff, time.Now().Add(limit)
		defer time.AfterFunc(limit, func() { close(cutoff) }).Stop()
	}
	b.start()
	if err := await(first, b.done, first.cutoff); err != nil && b.detach(time.AfterFunc(detachedTimeout, b.cancel)) {
		return err
	}
	return c.beginHolds(b)
}

// join joins the queues of the remaining names, up to the first that already has a head.
func (c *setCall) join() *batch {
	l := c.l
	b := &batch{l: l, inFlight: inFlight{done: make(chan struct{})}}
	b.req = store.BatchRequest{Holder: c.holder, Owner: store.NewOwnerID(l.process), Lease: l.rowLease(c.lease)}
	for _, name := range c.names {
		w, _ := l.queues.Join(queue.Request{Name: name, Owner: c.owner, NoWait: true})
		if w == nil {
			break
		}
		select {
		case <-w.Head:
		default:
			l.leaveQueue(w)
			return b
		}
		one := c.one(name)
		one.waiter = w
		b.add(one)
	}
	return b
}

// beginHolds begins a hold for each name that a batch was granted.
func (c *setCall) beginHolds(b *batch) error {
	l := c.l
	late := b.err == nil && !time.Now().Before(lease.TrustedUntil(b.grant.Sent, b.req.Lease))
	if b.err != nil || late {
		b.undo()
		switch {
		case b.err != nil && !store.Transient(b.err):
			return b.err
		case c.wait <= 0 && store.OutcomeUnknown(b.err) && !store.Contended(b.err): // its own batch must not refuse it
			return fmt.Errorf("%w: %w", ErrUnavailable, b.err)
		}
		return nil
	}
	l.releaseUnused(b.grant.Unwanted, b.req.Lease)
	for i, claim := range b.req.Claims(b.grant.Granted) {
		one := b.calls[i]
		one.observed = c.observe(one.name)
		k, err := one.beginHold(&attempt{
			l: l, waiter: one.waiter, request: store.AcquireRequest{Claim: claim, Lease: b.req.Lease},
			grant: store.Grant{Token: b.grant.Token, Claim: claim, Sent: b.grant.Sent},
		})
		if k == nil { // beginHold releases this one
			l.leaveQueue(one.waiter)
			b.giveBack(i + 1)
			return err
		}
		l.observers.acquireEnd(one.observed, one.name, k, nil)
		c.locks, c.names = append(c.locks, k), c.names[1:]
	}
	b.leave(b.grant.Granted)
	return nil
}

// unlockAll unlocks handles. One statement releases the rows of all holds that have no other handle.
func (l *Locker) unlockAll(locks []*Lock) error {
	held, others := l.endHandles(locks)
	var errs []error
	for _, k := range others {
		if err := k.unlock(0); err != ErrNotHeld { // unless unlocked on its own
			errs = append(errs, opError("unlock", k.Name(), err))
		}
	}
	if len(held) > 0 {
		defer l.working.Done()
		for i, err := range l.releaseRows(held) {
			err = outage.Describe(err)
			l.rowReleased(held[i], err)
			errs = append(errs, opError("unlock", held[i].key.name, err))
		}
	}
	return errors.Join(errs...)
}

// endHandles ends each of several handles that is the only one of its hold, and with it the hold. The
// caller must release the rows of these holds, and then call working.Done; and unlock the other handles,
// or a single one, one by one.
func (l *Locker) endHandles(locks []*Lock) (held []*hold, others []*Lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range locks {
		h := k.hold
		alone := len(locks) > 1 && len(h.handles) == 1 && h.share == nil && h.downgraded == nil && h.minHold == 0
		if k.state() != nil || !alone || !l.watchdog.Alive(h.lease.Load()) {
			others = append(others, k)
			continue
		}
		delete(l.holds, h.key)
		l.endHold(h, ErrNotHeld)
		h.handles = nil
		held = append(held, h)
	}
	if len(held) > 0 {
		l.working.Add(1) // safe: Close ends all handles before it waits for working
	}
	return held, others
}
