package mysqllock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
)

// Detach ends the handle without releasing the lock, which stays held for the given lease (at
// least 10 ms) from now. It returns a Ticket, which [Locker.Attach] turns into a new handle, in any
// process that uses the same table. End transactions that are under [Lock.Guard] first: the lock
// keeps its token, so Attach does not wait for them.
//
// Detach blocks for one round trip, for at most 3 s, or until ctx ends. It returns an error and
// changes nothing if
//   - lease is too short ([ErrInvalidLease]), or ctx has ended,
//   - the handle was unlocked ([ErrNotHeld]), or the Locker closed ([ErrClosed]),
//   - the owner has other handles of the lock, or other owners in this process share it,
//   - the handle is shared but the lock is still exclusive (see [Locker.TryRLock]).
//
// In all other cases Detach ends the handle and its Context, with the cause [ErrNotHeld], even if
// it returns an error: [ErrLost] if the lock was lost before, or the error of ctx or the database.
// After the latter the lock is released, in the background if necessary.
func (k *Lock) Detach(ctx context.Context, lease time.Duration) (Ticket, error) {
	t, err := k.detach(ctx, lease)
	return t, opError("detach", k.Name(), err)
}

var (
	errOtherHandles   = errors.New("the lock has other handles, which must be unlocked first")
	errBecomingShared = errors.New("the lock is still exclusive: a transaction has its row locked, or making it shared failed")
)

func (k *Lock) detach(ctx context.Context, length time.Duration) (Ticket, error) {
	if err := checkFixedLease(length); err != nil {
		return "", err
	}
	l, h := k.locker, k.hold
	if err := l.lockAfterDowngrade(ctx, h); err != nil {
		return "", err
	}
	l.checkLoss(h)
	err := k.state()
	switch {
	case err != nil:
	case len(h.handles) > 1, h.share != nil && len(h.share.holds) > 1:
		err = errOtherHandles
	case k.shared && h.share == nil: // the ticket would be for an exclusive lock
		err = errBecomingShared
	case ctx.Err() != nil:
		err = causeOf(ctx)
	}
	if err != nil {
		l.unlockMu()
		return "", err
	}
	// The handle ends first, because the new lease may be shorter than the one that it trusts.
	delete(l.holds, h.key)
	l.endHold(h, ErrNotHeld)
	h.handles = nil
	l.leaveShareLocked(h)
	l.working.Add(1) // safe: Close ends all handles before it waits for working
	defer l.working.Done()
	ls, m := h.lease.Load(), h.rowMinimum()
	minHold := max(h.minHold, m.Held, m.Until.Sub(h.began)) // also of a hold that shared the row before, and could not keep it
	l.mu.Unlock()

	req := store.DetachRequest{Claim: ls.Claim, Ticket: store.NewTicketID(l.process), Lease: length}
	if h.handedOver {
		req.Age = max(time.Since(h.began), 1)
	}
	span := l.watchdog.Stop(ls)
	err = l.detachRow(ctx, req, span)
	l.rowReleased(h, err)
	if err != nil {
		return "", err
	}
	t := ticket{
		claim: store.Claim{Name: req.Name, Owner: req.Ticket}, token: h.token, first: h.tokens.token, minHold: minHold,
	}
	return t.encode(), nil
}

// detachRow makes a ticket the owner of a row. If that fails, the releaser releases the row,
// whichever of the claim and the ticket then owns it.
func (l *Locker) detachRow(ctx context.Context, req store.DetachRequest, span time.Duration) error {
	var next store.Process
	var sent time.Time
	maybe, err := l.changeOwner(ctx, req.Claim, func(ctx context.Context) (detached bool, err error) {
		detached, next, sent, err = l.repo.Detach(ctx, req)
		return detached, err
	})
	switch {
	case err == nil:
		l.waker.Released([]string{req.Name}, next) // waiters learn when the row may be free
		if time.Since(sent) >= req.Lease {
			return ErrLost // the lease may have ended
		}
	case err != ErrLost:
		l.releaser.Add(req.Claim, span, false, time.Now())
		err = l.handoverError(ctx, err)
	}
	if maybe {
		l.releaser.Add(store.Claim{Name: req.Name, Owner: req.Ticket}, req.Lease, true, time.Now())
	}
	return err
}

// changeOwner sends a statement that replaces the claim that owns a row, and repeats it until its
// outcome is known, or ctx, Close or unlockTimeout ends that. maybe means that, in spite of the error,
// the new claim may own the row now, or later.
func (l *Locker) changeOwner(ctx context.Context, from store.Claim, send func(ctx context.Context) (changed bool, err error)) (maybe bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, unlockTimeout)
	defer cancel()
	defer context.AfterFunc(l.background, cancel)()
	err = l.onRow(ctx, time.Time{}, from, func(ctx context.Context) (changed bool, err error) {
		changed, err = send(ctx)
		maybe = maybe || err != ErrLost && err != ErrClosed && store.OutcomeUnknown(err)
		return changed, err
	})
	return maybe && err != nil, err
}

// handoverError describes the last error of a Detach or an Attach that gives up, and adds the
// reason if that is Close or ctx.
func (l *Locker) handoverError(ctx context.Context, err error) error {
	err = outage.Describe(err)
	switch {
	case l.isClosed():
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", causeOf(ctx), err)
	}
	return err
}

// Attach returns a new handle for the lock that was detached as t. The lock keeps its token. Attach
// succeeds once, in any process that uses the same table, and only until the lease that was passed
// to [Lock.Detach] has expired. lease is the new lease, as for [Locker.TryLock]. The owner is that
// of ctx, or a new one, and ctx is the parent of [Lock.Context].
//
// Attach does not wait for other owners. It blocks for one round trip, for at most 3 s, or until ctx
// ends. It returns [ErrLost] if the lease has expired, if the lock was
// attached before or taken by force, or if the owner has lost a lock of this name and not unlocked
// it yet; [ErrNotAcquired] if a transaction has the row locked; [ErrUnavailable], with the
// database's error, if the database did not reply. If ctx has ended, either of these two also
// matches [context.Cause] of ctx. Other errors: t is not a Ticket or the owner holds the lock
// already, [ErrInvalidLease], [ErrClosed], the database's error. If the outcome is unknown, the
// lock is released in the background; otherwise the Ticket can be used again.
func (l *Locker) Attach(ctx context.Context, t Ticket, lease time.Duration) (*Lock, error) {
	parsed, err := t.parse()
	if err != nil {
		return nil, fmt.Errorf("mysqllock: attach: %w", err)
	}
	name := store.NameOf(parsed.claim.Name)
	o := l.observers.acquireStart(ctx, name, store.ModeOf(parsed.claim.Name))
	k, err := l.attach(ctx, parsed, lease, o)
	return l.acquireEnded("attach", name, k, err, o)
}

func (l *Locker) attach(ctx context.Context, t ticket, length time.Duration, o *observation) (*Lock, error) {
	if err := checkLease(length); err != nil {
		return nil, err
	}
	c := &call{observed: o}
	if err := c.init(ctx, l, request{name: store.NameOf(t.claim.Name), mode: store.ModeOf(t.claim.Name), lease: length}); err != nil {
		return nil, err
	}
	h := c.newHold(t.token, tokenRange{token: t.first})
	h.minHold = t.minHold
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.working.Done()
	if err := l.requireNoHold(h.key); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, l.canceled(ctx)
	}
	req := store.AttachRequest{
		Claim: store.Claim{Name: t.claim.Name, Owner: store.NewOwnerID(l.process)}, Ticket: t.claim.Owner, Holder: c.holder, Lease: l.rowLease(length),
	}
	g, err := l.attachRow(ctx, req)
	if err != nil {
		return nil, err
	}
	return c.beginAttached(h, g, req.Lease)
}

var errHeld = errors.New("the owner holds the lock already")

// requireNoHold returns an error if the owner has a hold of the name, even a lost one that is not
// unlocked yet.
func (l *Locker) requireNoHold(key holdKey) error {
	l.mu.Lock()
	defer l.unlockMu()
	h := l.holds[key]
	if h == nil {
		return nil
	}
	l.checkLoss(h)
	return cmp.Or(h.ended, errHeld)
}

// attachRow makes a claim the owner of a ticket's row. After an error, the releaser releases the
// row if the claim may own it.
func (l *Locker) attachRow(ctx context.Context, req store.AttachRequest) (g store.Grant, err error) {
	detached := store.Claim{Name: req.Name, Owner: req.Ticket}
	var last error // of the last try
	maybe, err := l.changeOwner(ctx, detached, func(ctx context.Context) (attached bool, err error) {
		if last != nil && l.isClosed() {
			return false, ErrClosed
		}
		if g, err = l.repo.Attach(ctx, req); err == store.ErrTicketExpired {
			return false, ErrLost
		}
		last = cmp.Or(err, errNotMatched)
		return g.Token > 0, err
	})
	if err == ErrClosed {
		err = last
	}
	if err != nil && err != ErrLost {
		err = l.attachError(ctx, detached, err)
	}
	if maybe { // after attachError, whose probe must not find the row locked by this release
		l.releaser.Add(req.Claim, req.Lease, true, time.Now())
	}
	return g, err
}

// attachError classifies the error of an Attach that gives up on the row of a ticket.
func (l *Locker) attachError(ctx context.Context, c store.Claim, err error) error {
	if ctx.Err() != nil && store.Transient(err) && l.rowLocked(c) {
		err = store.ErrRowLocked // the statement was cut off behind it
	}
	described := l.handoverError(ctx, err)
	switch {
	case l.isClosed(), !store.Transient(err):
		return described
	case store.Contended(err):
		return fmt.Errorf("%w: %w", ErrNotAcquired, described)
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, described)
	}
}

// rowLocked reports whether a transaction has the row of a claim locked, as far as can be found out
// in probeWait.
func (l *Locker) rowLocked(c store.Claim) bool {
	ctx, cancel := context.WithTimeout(l.background, probeWait)
	defer cancel()
	state, err := l.repo.Probe(ctx, c)
	return err == nil && state == store.RowLocked
}

// beginAttached turns the grant of an Attach into a hold, unless it came too late.
func (c *call) beginAttached(h *hold, g store.Grant, granted time.Duration) (*Lock, error) {
	l := c.l
	l.mu.Lock()
	var err error
	switch {
	case l.isClosed():
		err = ErrClosed
	case l.holds[h.key] != nil, !time.Now().Before(lease.TrustedUntil(g.Sent, granted)):
		err = ErrLost
	}
	if err != nil {
		l.mu.Unlock()
		l.working.Go(func() { l.releaseUnwanted(g.Claim, granted, "") })
		return nil, err
	}
	k := c.addHandle(h, g.Sent)
	l.startLease(c.mode, h, k, g, granted, time.Time{}) // no look for exclusive requests yet
	l.holdBegan(c, h, time.Now())
	if c.reentrant {
		l.queues.Wake(c.queueName) // the head may have the same owner
	}
	return k, nil
}
