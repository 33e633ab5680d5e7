package mysqllock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A hold is the possession of a lock by one owner: from the grant, or the handoff, until the lock
// is released or lost. Its open handles share it.
type hold struct {
	locker   *Locker
	key      holdKey
	owner    *owner
	token    uint64
	tokens   tokenRange
	lease    atomic.Pointer[lease.Lease] // changes once, when an exclusive hold becomes shared
	deadline atomic.Int64                // if the hold depends on a share: when its fixed lease can no longer be trusted, as a lease.Instant; otherwise 0
	guarded  atomic.Bool                 // Guard was called
	waiter   *waiter                     // the head of the name's queue; nil if the hold is shared, a permit, or was attached
	handles  []*Lock
	holder   string       // label from WithHolder; "" if not set
	observed *observation // may be nil
	ended    error        // nil at first; then ErrLost, ErrNotHeld or ErrClosed
	began    time.Time

	handedOver bool          // it began with a handoff, or joined a share: no statement acquired the row for it
	minHold    time.Duration // the longest time that an UnlockAfter has requested, or 0

	share       *share        // nil unless the lock is held shared
	auto        bool          // counted in share.autos
	timer       *time.Timer   // fires at deadline; nil if there is none
	downgrading bool          // a downgrade is in flight
	downgraded  chan struct{} // closed when the last downgrade has succeeded or failed; nil if none has begun

	// Most holds have one handle, and are handed over at most once. These save three allocations.
	first       Lock
	firstHandle [1]*Lock
	offer       handoff
}

type holdKey struct {
	owner *owner
	name  string
}

// beginHold turns a grant into a hold. It returns nil, and releases the row, if the grant came too
// late, or if the owner has acquired the lock by another call meanwhile.
func (c *call) beginHold(a *attempt) (*Lock, error) {
	l := c.l
	l.mu.Lock()
	now := time.Now()
	late := !now.Before(lease.TrustedUntil(a.grant.Sent, a.request.Lease))
	if late || l.isClosed() || l.holds[c.key()] != nil {
		l.mu.Unlock()
		l.working.Go(a.release)
		if l.isClosed() {
			l.leaveQueue(c.waiter)
			return nil, ErrClosed
		}
		return nil, nil
	}
	h := c.newHold(a.firstToken(), tokenRange{token: a.grant.Token})
	if a.handoff != nil {
		h.tokens.since = a.handoff.since
	}
	k := c.addHandle(h, a.grant.Sent)
	l.startLease(c.mode, h, k, a.grant, a.request.Lease, a.grant.Sent)
	if c.mode != store.Exclusive {
		h.waiter = nil
	} else if s := l.shares[c.name]; s != nil {
		l.closeShare(s) // its row is no longer held: ForceUnlock has freed it
	}
	l.holdBegan(c, h, now)
	l.answered(c.waiter, true, c.again)
	if c.mode != store.Exclusive {
		if c.mode == store.Shared && a.request.EnlistAs != 0 {
			l.waker.WakeNext(c.queueName)
		}
		l.leaveQueue(c.waiter)
	}
	return k, nil
}

// startLease starts the lease of a hold with one handle, from a grant whose lease has the given
// length. looked is as in startShare. The caller holds mu.
func (l *Locker) startLease(m store.Mode, h *hold, k *Lock, g store.Grant, length time.Duration, looked time.Time) {
	if m == store.Shared {
		l.startShare(h, store.Grant{Token: h.tokens.token, Claim: g.Claim, Sent: g.Sent}, length, looked)
		return
	}
	h.lease.Store(l.watchdog.Start(g.Claim, g.Sent, length, k.requested, h))
}

func (c *call) newHold(token uint64, tokens tokenRange) *hold {
	h := &hold{locker: c.l, key: c.key(), owner: c.owner, token: token, tokens: tokens, waiter: c.waiter, holder: c.holder}
	h.handles = h.firstHandle[:0]
	return h
}

// holdBegan records a new hold. The caller holds mu; holdBegan unlocks it.
func (l *Locker) holdBegan(c *call, h *hold, at time.Time) {
	h.began, h.observed = at, c.observed
	l.holds[h.key] = h
	l.held++
	l.acquired.Add(1)
	l.mu.Unlock()
	if c.mode == store.Exclusive && c.waiter != nil {
		c.waiter.Admit(false)
	}
	if c.reentrant {
		l.queues.WakeOwner(c.queueName, c.owner)
	}
}

// addHandle adds a handle to a hold. The caller holds mu.
func (c *call) addHandle(h *hold, from time.Time) *Lock {
	k := &h.first
	if k.locker != nil {
		k = new(Lock)
	}
	k.locker, k.hold, k.parent, k.shared = c.l, h, c.ctx, c.mode == store.Shared
	k.requested = requestOf(c.lease, from)
	k.open.Store(true)
	h.handles = append(h.handles, k)
	return k
}

// requestOf returns what a handle requests of its hold: a lease, which may be AutoRenew, from a time on.
func requestOf(length time.Duration, from time.Time) lease.Request {
	if length == AutoRenew {
		return lease.Request{Auto: true}
	}
	return lease.Request{Until: from.Add(length), Margin: lease.Margin(length)}
}

// rowLease returns the lease to write to the row for a requested lease, which may be AutoRenew.
func (l *Locker) rowLease(requested time.Duration) time.Duration {
	if requested == AutoRenew {
		return l.lease
	}
	return requested
}

// request combines the leases that the open handles of the hold request. The caller holds mu.
func (h *hold) request() lease.Request {
	var all lease.Request
	for _, k := range h.handles {
		all.Auto = all.Auto || k.requested.Auto
		if k.requested.Until.After(all.Until) {
			all.Until, all.Margin = k.requested.Until, k.requested.Margin
		}
	}
	return all
}

// requestsChanged adjusts the lease of a hold to what its open handles request. It sends nothing:
// the watchdog does. The caller holds mu.
func (l *Locker) requestsChanged(h *hold) {
	if h.share != nil {
		l.shareChanged(h)
		return
	}
	l.watchdog.Change(h.lease.Load(), h.request(), len(h.handles))
}

// live reports whether the hold can be trusted now. It needs no mutex.
func (h *hold) live() bool {
	return !h.expired() && h.lease.Load().Live()
}

// remaining returns how long the hold can be trusted without another renewal.
func (h *hold) remaining() time.Duration {
	left := h.lease.Load().Remaining()
	if deadline := h.deadline.Load(); deadline != 0 {
		left = min(left, time.Duration(deadline-lease.Now()))
	}
	return max(left, 0)
}

// setDeadline ends the trust in the hold at a time, even if its lease lasts longer. With the zero
// time, it ends only with the lease. The caller holds mu.
func (h *hold) setDeadline(at time.Time) {
	if h.timer != nil {
		h.timer.Stop()
		h.timer = nil
	}
	if at.IsZero() {
		h.deadline.Store(0)
		return
	}
	h.deadline.Store(lease.Instant(at))
	h.timer = time.AfterFunc(time.Until(at), h.LeaseLost)
}

// expired reports whether the hold depends on a share, and its own fixed lease has ended.
func (h *hold) expired() bool {
	deadline := h.deadline.Load()
	return deadline != 0 && lease.Now() >= deadline
}

// checkLoss ends the hold if its lease has ended. The caller holds mu, and must unlock it with
// unlockMu.
func (l *Locker) checkLoss(h *hold) {
	if h.ended != nil || h.live() || !h.expired() && (l.watchdog.Alive(h.lease.Load()) || h.downgradeTookRow()) {
		return
	}
	l.working.Add(1) // safe: Close ends all holds before it waits for working
	l.endHold(h, ErrLost)
	l.losses = append(l.losses, h)
}

// unlockMu unlocks mu, and reports the losses that checkLoss has found.
func (l *Locker) unlockMu() {
	losses := l.losses
	l.losses = nil
	l.mu.Unlock()
	for _, h := range losses {
		l.finishLoss(h)
	}
}

// downgradeTookRow reports whether the hold's row may have another owner only because a downgrade
// is in flight. The caller holds the Locker's mu.
func (h *hold) downgradeTookRow() bool {
	return h.downgrading && h.locker.watchdog.Reason(h.lease.Load()) == lease.Taken
}

// LeaseLost is called by the watchdog when the lease can no longer be trusted.
func (h *hold) LeaseLost() {
	h.locker.mu.Lock()
	h.locker.checkLoss(h)
	h.locker.unlockMu()
}

// finishLoss reports a loss and leaves the queue.
func (l *Locker) finishLoss(h *hold) {
	defer l.working.Done()
	reason := l.watchdog.Reason(h.lease.Load())
	if h.expired() {
		reason = lease.Ended
	}
	l.recordLoss(h, reason)
	if h.share != nil {
		l.releaseLost(h)
	} else {
		l.repo.HoldEnded()
	}
	l.serveNext(h)
	l.observers.holdEnd(h, ErrLost)
}

// recordLoss counts and logs a loss.
func (l *Locker) recordLoss(h *hold, reason string) {
	l.lost.Add(1)
	l.log.Error("mysqllock: lock lost", "name", store.NameOf(h.key.name), "token", h.token, "reason", reason)
}

// endHold ends a hold and the contexts of its handles. The caller holds mu.
func (l *Locker) endHold(h *hold, why error) {
	h.ended = why
	l.held--
	for _, k := range h.handles {
		k.end(why)
	}
}

// Extend makes the lease last for at least the given time from now, which must be at least 10 ms.
// It also works for a handle with [AutoRenew]. It blocks for one round trip, or for as long as a
// transaction has the row locked; it retries transient errors until ctx ends. It returns
// [ErrInvalidLease], [ErrLost], [ErrNotHeld], [ErrClosed], the cause of ctx, or the database's
// error. After an error, the lease is unchanged or longer.
func (k *Lock) Extend(ctx context.Context, lease time.Duration) error {
	return opError("extend", k.Name(), k.extend(ctx, lease))
}

func (k *Lock) extend(ctx context.Context, lease time.Duration) error {
	if err := checkFixedLease(lease); err != nil {
		return err
	}
	l, h := k.locker, k.hold
	for {
		if err := k.Err(); err != nil {
			return err
		}
		if err := l.lockAfterDowngrade(ctx, h); err != nil {
			return cmp.Or(k.Err(), err)
		}
		holds, ls := len(h.handles), h.lease.Load()
		l.mu.Unlock()
		var sent time.Time
		var ended error // of the handle, whose lease others may share
		var stale bool  // the hold is lost, or has another lease
		err := l.onRow(ctx, time.Time{}, ls.Claim, func(ctx context.Context) (owned bool, err error) {
			if ended = k.Err(); ended != nil {
				return false, ended
			}
			if stale = !l.watchdog.Extending(ls, lease); stale {
				return false, ErrLost
			}
			owned, sent, err = l.repo.Extend(ctx, ls.Claim, lease, holds, 0)
			return owned, err
		})
		switch {
		case ended != nil:
			return ended
		case stale:
			continue
		case (err == nil || err == ErrLost) && l.becameShared(h, ls): // extend its new row instead
			continue
		case err == nil:
			l.mu.Lock()
			if r := requestOf(lease, sent); r.Until.After(k.requested.Until) {
				k.requested.Until, k.requested.Margin = r.Until, r.Margin
			}
			if h.ended == nil { // otherwise the lease may belong to the next holder
				l.requestsChanged(h)
			}
			// Extend calls may overlap, so the row's number of handles is unknown.
			l.watchdog.Extended(ls, sent, lease)
			l.mu.Unlock()
			return k.Err()
		case err == ErrLost:
			l.watchdog.OwnerChanged(ls.Claim)
			return cmp.Or(k.Err(), err)
		case k.Err() != nil:
			return k.Err()
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %w", context.Cause(ctx), outage.Describe(err))
		default:
			return err
		}
	}
}

// errNotMatched is the error of a statement that matched no row although the claim owns the row.
// MariaDB 11.8 may reply to a killed UPDATE in this way.
var errNotMatched = errors.New("the statement matched nothing, although the row is this lock's")

const (
	tryTimeout     = unlockTimeout / 2      // limits each try of onRow
	maxUnmatched   = 10                     // tries of onRow that end with errNotMatched
	maxLockedPause = 200 * time.Millisecond // limits the delay of onRow after a row lock, perhaps a short one
)

// onRow sends a statement that should match the row of a claim, and repeats it after transient errors
// until ctx ends, or until end, unless that is zero. It returns nil if the statement matched the row,
// ErrLost if the claim has lost the row, and otherwise the last error. send may return the error of a
// handle that has ended, which onRow then returns.
func (l *Locker) onRow(ctx context.Context, end time.Time, c store.Claim, send func(ctx context.Context) (matched bool, err error)) error {
	unmatched := 0
	for pause := firstBackoff; ; {
		limit := time.Now().Add(tryTimeout)
		if !end.IsZero() && end.Before(limit) {
			limit = end
		}
		limited, cancel := context.WithDeadline(ctx, limit) // one timer: every release pays for it
		matched, err := send(limited)
		if err == nil && !matched || errors.Is(err, store.ErrRowLocked) {
			err = l.notMatched(limited, c, err)
		}
		cancel()
		switch err {
		case nil, ErrLost, ErrNotHeld, ErrClosed:
			return err
		case errNotMatched:
			unmatched++
		}
		if errors.Is(err, store.ErrRowLocked) {
			pause.Delay = min(pause.Delay, maxLockedPause)
		}
		late := !end.IsZero() && time.Until(end) <= pause.Delay
		if !store.Transient(err) || unmatched == maxUnmatched || late || !pause.Wait(ctx) {
			return err
		}
	}
}

// notMatched returns why a statement did not match the row of a claim: ErrLost, or skipped, which is
// the error of a statement that skipped the locked row, or errNotMatched if that is nil.
func (l *Locker) notMatched(ctx context.Context, c store.Claim, skipped error) error {
	owned, err := l.repo.Owned(ctx, []store.Claim{c})
	switch {
	case err != nil:
		return err
	case len(owned) == 0:
		return ErrLost
	default:
		return cmp.Or(skipped, errNotMatched)
	}
}

// releaseBy frees a row. The row stays taken for the minimum time m, or, if grant is not "", may be
// granted to the next process. If no try until end succeeds, the releaser repeats the release until a
// lease of the given length has ended.
func (l *Locker) releaseBy(end time.Time, c store.Claim, lease time.Duration, m store.MinHold, grant string) error {
	var next store.Process
	maybe := false // an earlier try may have freed the row
	err := l.onRow(context.Background(), end, c, func(ctx context.Context) (freed bool, err error) {
		if maybe {
			ctx = store.Repeated(ctx)
		}
		freed, next, err = l.sendRelease(ctx, c, m, grant)
		maybe = maybe || store.OutcomeUnknown(err)
		if err == nil && !freed && grant != "" {
			freed, next, err = l.hasGranted(ctx, c.Name, grant)
		}
		return freed, err
	})
	switch {
	case err == nil, err == ErrLost && maybe:
		l.waker.Released([]string{c.Name}, next)
		return nil
	case err != ErrLost:
		l.releaser.Add(c, lease, false, time.Now())
	}
	return err
}
