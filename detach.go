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

// handoverTimeout limits a Detach or an Attach, whose statement is repeated until its outcome is
// known.
const handoverTimeout = unlockTimeout

// Detach ends the handle without releasing the lock, which stays held for lease (at least 10 ms)
// from now, and returns a Ticket, by which [Locker.Attach] makes it a handle again, in any
// process that uses the same table. End transactions that are under [Lock.Guard] first: the
// lock keeps its token, so Attach does not wait for them.
//
// Detach blocks for one round trip, for at most 3 s, or until ctx ends. It returns an error and
// changes nothing if lease is too short ([ErrInvalidLease]), if the owner has further handles
// of the lock, if ctx has ended, if the handle was unlocked ([ErrNotHeld]), or after Close
// ([ErrClosed]). Otherwise it ends the handle and its Context, whose cause is [ErrNotHeld]: after
// [ErrLost] the lock was lost before; after the error of ctx or of the database, it is released,
// in the background if necessary.
func (k *Lock) Detach(ctx context.Context, lease time.Duration) (Ticket, error) {
	if lease < minLease {
		return "", opError("detach", k.Name(), fmt.Errorf("%w: %v; want at least %v", ErrInvalidLease, lease, minLease))
	}
	t, err := k.detach(ctx, lease)
	if err != nil {
		return "", opError("detach", k.Name(), err)
	}
	return t, nil
}

var errOtherHandles = errors.New("the lock has other handles, which must be unlocked first")

func (k *Lock) detach(ctx context.Context, length time.Duration) (Ticket, error) {
	l, h := k.locker, k.hold
	l.mu.Lock()
	lost := l.checkLoss(h)
	defer l.finishLoss(h, lost)
	err := k.state()
	switch {
	case err != nil:
	case len(h.handles) > 1:
		err = errOtherHandles
	case ctx.Err() != nil:
		err = causeOf(ctx)
	}
	if err != nil {
		l.mu.Unlock()
		return "", err
	}
	// The handle ends first, because the new lease may be shorter than the one that it trusts.
	delete(l.holds, h.key)
	l.endHold(h, ErrNotHeld)
	h.handles = nil
	l.working.Add(1) // Close would have ended this handle
	defer l.working.Done()
	l.mu.Unlock()

	req := store.DetachRequest{Claim: h.lease.Claim, Ticket: store.NewTicketID(l.process), Lease: length}
	if !h.handedOver.IsZero() {
		req.Age = max(time.Since(h.handedOver), 1)
	}
	span := l.watchdog.Stop(h.lease)
	switch err = l.detachRow(ctx, req, span); err {
	case nil:
		l.released.Add(1)
	case ErrLost:
		l.recordLoss(h, lease.Taken)
	}
	l.repo.HoldEnded()
	l.serveNext(h)
	l.observers.holdEnd(h, err)
	t := ticket{
		claim: store.Claim{Name: req.Name, Owner: req.Ticket}, token: h.token, first: h.tokens.token, minHold: h.minHold,
	}
	return t.encode(), err
}

// detachRow gives a row to a ticket. If that fails, the releaser releases the row, which may
// belong to the claim or to the ticket.
func (l *Locker) detachRow(ctx context.Context, req store.DetachRequest, span time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, handoverTimeout)
	defer cancel()
	maybe := false // a statement may have given the row to the ticket, or may do so yet
	for pause := firstBackoff; ; {
		tryCtx, cancel := context.WithTimeout(limited, handoverTimeout/2)
		detached, sent, err := l.repo.Detach(tryCtx, req)
		lost := false
		if err == nil && !detached || errors.Is(err, store.ErrRowLocked) {
			lost, err = l.notMatched(tryCtx, req.Claim, err)
		} else {
			maybe = maybe || store.OutcomeUnknown(err)
		}
		cancel()
		switch {
		case lost, err == nil && time.Since(sent) >= req.Lease: // the lease may have ended
			return ErrLost
		case err == nil:
			return nil
		case !store.Transient(err) || !pause.Wait(limited):
			l.releaser.Add(req.Claim, span, false, time.Now())
			if maybe {
				l.releaser.Add(store.Claim{Name: req.Name, Owner: req.Ticket}, req.Lease, true, time.Now())
			}
			return handoverError(ctx, err)
		}
	}
}

// handoverError describes the error of a Detach or an Attach that gives up: because of ctx, or
// because its own time limit has passed.
func handoverError(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = outage.Unanswered(err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", causeOf(ctx), err)
	}
	return err
}

// Attach makes the lock that t stands for a handle again, with the token that it had. It can be
// called once, in any process that uses the same table, while the lease that [Lock.Detach] was
// given runs. From then on, lease is as for [Locker.TryLock]. The owner is that of ctx, or a new
// one, and ctx is the parent of [Lock.Context].
//
// Attach does not wait for other owners. It blocks for one round trip, for at most 3 s, or until
// ctx ends. It returns [ErrLost] if the lease had ended, if the lock was attached before or taken
// by force, or if the owner has a lock of this name that was lost and not unlocked. It returns
// [ErrNotAcquired] if a transaction has the row locked, [ErrUnavailable] with the database's
// error if the database did not reply, the cause of ctx, an error if t is no Ticket,
// [ErrInvalidLease], [ErrClosed], or the database's error. If the outcome is unknown, the lock
// is released in the background; otherwise the Ticket can be used again.
func (l *Locker) Attach(ctx context.Context, t Ticket, lease time.Duration) (*Lock, error) {
	parsed, err := t.parse()
	if err != nil {
		return nil, fmt.Errorf("mysqllock: attach: %w", err)
	}
	name := store.NameOf(parsed.claim.Name)
	o := l.observers.acquireStart(ctx, name)
	k, err := l.attach(ctx, parsed, lease, o)
	return l.acquireEnded("attach", name, k, err, o)
}

func (l *Locker) attach(ctx context.Context, t ticket, length time.Duration, o *observed) (*Lock, error) {
	if length != AutoRenew && length < minLease {
		return nil, fmt.Errorf("%w: %v; want AutoRenew or at least %v", ErrInvalidLease, length, minLease)
	}
	label, err := holderOf(ctx)
	if err != nil {
		return nil, err
	}
	own, shared := ctx.Value(ownerKey{}).(*owner)
	if !shared {
		own = new(owner)
	}
	h := &hold{key: holdKey{own, store.NameOf(t.claim.Name)}, token: t.token, tokens: tokenRange{token: t.first}, holder: label, minHold: t.minHold}
	if !l.enter() {
		return nil, ErrClosed
	}
	defer l.working.Done()
	if err := l.requireNoHold(h.key); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, causeOf(ctx)
	}
	req := store.AttachRequest{
		Claim: store.Claim{Name: t.claim.Name, Owner: store.NewOwnerID(l.process)}, Ticket: t.claim.Owner, Holder: label, Lease: length,
	}
	if length == AutoRenew {
		req.Lease = l.lease
	}
	g, err := l.attachRow(ctx, req)
	if err != nil {
		return nil, err
	}
	k, err := l.beginAttached(ctx, h, g, req.Lease, length, o)
	if err == nil && shared {
		l.queues.Wake(h.key.name)
		l.queues.WakeOwner(h.key.name, own)
	}
	return k, err
}

var errHeld = errors.New("the owner holds the lock already")

// requireNoHold returns an error if the owner has a hold of the name, or has lost one and not
// unlocked it.
func (l *Locker) requireNoHold(key holdKey) error {
	l.mu.Lock()
	h := l.holds[key]
	if h == nil {
		l.mu.Unlock()
		return nil
	}
	lost := l.checkLoss(h)
	err := cmp.Or(h.ended, errHeld)
	l.mu.Unlock()
	l.finishLoss(h, lost)
	return err
}

// attachRow takes a row from a ticket. After an error, the releaser releases the row if it may
// have been taken.
func (l *Locker) attachRow(ctx context.Context, req store.AttachRequest) (store.Grant, error) {
	limited, cancel := context.WithTimeout(ctx, handoverTimeout)
	defer cancel()
	maybe := false
	for pause := firstBackoff; ; {
		tryCtx, cancel := context.WithTimeout(limited, handoverTimeout/2)
		g, err := l.repo.Attach(tryCtx, req)
		gone := err == store.ErrTicketExpired
		maybe = maybe || !gone && store.OutcomeUnknown(err)
		if err == nil && g.Token == 0 || errors.Is(err, store.ErrRowLocked) {
			gone, err = l.notMatched(tryCtx, store.Claim{Name: req.Name, Owner: req.Ticket}, err)
		}
		cancel()
		switch {
		case g.Token > 0:
			return g, nil
		case gone:
			err = ErrLost
		case store.Transient(err) && pause.Wait(limited):
			select {
			case <-l.done:
				err = ErrClosed
			default:
				continue
			}
		default:
			err = attachError(ctx, err)
		}
		if maybe {
			l.releaser.Add(req.Claim, req.Lease, true, time.Now())
		}
		return store.Grant{}, err
	}
}

// attachError classifies the error of an Attach that gives up.
func attachError(ctx context.Context, err error) error {
	described := handoverError(ctx, err)
	switch {
	case ctx.Err() != nil, !store.Transient(err):
		return described
	case store.Contended(err):
		return fmt.Errorf("%w: %w", ErrNotAcquired, described)
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, described)
	}
}

// beginAttached turns the grant of an Attach into a hold, unless it came too late.
func (l *Locker) beginAttached(ctx context.Context, h *hold, g store.Grant, granted, length time.Duration, o *observed) (*Lock, error) {
	l.mu.Lock()
	var err error
	switch {
	case l.closed:
		err = ErrClosed
	case l.holds[h.key] != nil, !time.Now().Before(lease.TrustedUntil(g.Sent, granted)):
		err = ErrLost
	}
	if err != nil {
		l.mu.Unlock()
		l.working.Go(func() {
			l.release(g.Claim, granted)
			l.repo.HoldEnded()
			l.queues.Wake(h.key.name)
		})
		return nil, err
	}
	defer l.mu.Unlock()
	k := l.addHandle(ctx, h, length, g.Sent)
	h.lease = l.watchdog.Start(g.Claim, g.Sent, granted, k.requested, func() { l.onLoss(h) })
	l.addHold(h, o)
	return k, nil
}
