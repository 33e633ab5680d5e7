package mysqllock

import (
	"context"
	"time"

	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A handoff transfers a live lease to the next local waiter.
type handoff struct {
	tokenRange
	last   uint64 // the last token that was used
	lease  *lease.Lease
	holder string // the label in the row, or "" if that is the label of the process
}

// A tokenRange has the tokens for successive holds of this process, from one grant on.
type tokenRange struct {
	token uint64    // in the row: the first of store.TokenRange tokens
	since time.Time // the time of the first handoff; zero if there was none
}

// maxHandoffTime is how long a lock may be handed over inside the process before the row is
// released, so that other processes have a chance.
const maxHandoffTime = 100 * time.Millisecond

// handoffTrust is the age up to which a statement that found the row owned by the hold makes another
// check before a handoff unnecessary. A holder whose row was taken away before that statement hands
// nothing over, and reports the loss.
const handoffTrust = 2 * time.Millisecond

// handOff hands a lock over to the next waiter of the process. It returns false if there is none,
// or if other processes have waited for too long. It does not write the row, so the lease must be
// live, and no transaction may be under Guard.
func (l *Locker) handOff(h *hold, now time.Time) bool {
	ls := h.lease.Load()
	offer := &h.offer
	*offer = handoff{tokenRange: h.tokens, last: h.token, lease: ls, holder: h.holder}
	switch {
	case !l.handoff || h.waiter == nil || h.minHold > 0:
		return false
	case offer.since.IsZero():
		offer.since = now
	case now.Sub(offer.since) > maxHandoffTime:
		return false
	}
	return h.waiter.CanOffer() && l.confirmed(ls, now) && h.waiter.Offer(offer)
}

// confirmed reports whether the hold of the lease is known to have owned its row within
// handoffTrust. If not, a statement must release the row, or find that it is lost.
//
// A check takes a good part of handoffTrust. So the next one begins in the background while the
// last one is still valid, and a hot lock need not wait for it.
func (l *Locker) confirmed(ls *lease.Lease, now time.Time) bool {
	age := now.Sub(l.watchdog.Seen(ls))
	if age > handoffTrust/2 && age < handoffTrust && l.confirming.CompareAndSwap(false, true) {
		l.working.Go(func() {
			l.confirm(ls)
			l.confirming.Store(false)
		})
	}
	return age < handoffTrust || l.confirm(ls)
}

// confirm asks the database whether the hold of the lease owns its row.
func (l *Locker) confirm(ls *lease.Lease) bool {
	ctx, cancel := context.WithTimeout(context.Background(), confirmTimeout)
	defer cancel()
	owned, sent, err := l.repo.Confirm(ctx, ls.Claim)
	if err == nil && owned {
		l.watchdog.Confirm(ls, sent)
	}
	return err == nil && owned
}

// usedUp reports whether the range has no token left for another handoff.
func (r *handoff) usedUp() bool { return r.last+1 >= r.token+store.TokenRange }

// firstToken returns the first token of the hold that a grant begins. If the grant replaced the
// owner of a used-up range, no other owner has had the lock since, so the tokens between the two
// are unused, and the hold continues with them. That is not certain if the owner's lease had ended:
// after a failover, the replica that replies may have missed another owner's grant.
func (a *attempt) firstToken() uint64 {
	if a.continuesRange {
		return a.handoff.last + 1
	}
	return a.grant.Token
}

// adopt turns a handoff into a hold. It returns nil if the lease does not cover what the call
// requests, or if no token is left; then an attempt must replace the owner in the row.
func (c *call) adopt(offer *handoff) *Lock {
	l := c.l
	if offer.usedUp() {
		return nil
	}
	if offer.holder != c.holder {
		return nil // the row must show the new label to operators
	}
	l.mu.Lock()
	if l.isClosed() || l.holds[c.key()] != nil {
		l.mu.Unlock()
		return nil
	}
	h := c.newHold(offer.last+1, offer.tokenRange)
	h.handedOver = true
	h.lease.Store(offer.lease)
	now := time.Now()
	k := c.addHandle(h, now)
	if !l.watchdog.Pass(offer.lease, k.requested, c.lease, h, now) {
		l.mu.Unlock()
		return nil
	}
	l.holdBegan(c, h, now)
	return k
}

// serveNext lets the next waiter of the process proceed after a hold has ended.
func (l *Locker) serveNext(h *hold) {
	if h.waiter != nil {
		l.leaveQueue(h.waiter)
	} else {
		l.queues.Wake(store.QueueOf(h.lease.Load().Claim.Name))
	}
}

// leaveQueue removes a waiter from its queue. If it leaves a handoff that no other waiter takes,
// leaveQueue releases the row.
func (l *Locker) leaveQueue(w *waiter) {
	if w == nil {
		return
	}
	offer, last := w.Leave()
	if last {
		l.waker.Leave(w.Name)
	}
	l.releaseHandoff(offer)
}

// releaseHandoff releases the row of a handoff in the background.
func (l *Locker) releaseHandoff(offer *handoff) {
	if offer != nil {
		l.releaser.Add(offer.lease.Claim, l.watchdog.Stop(offer.lease), false, time.Now())
		l.repo.HoldEnded()
	}
}
