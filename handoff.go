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
	last  uint64 // the last token that was used
	lease *lease.Lease
}

// A tokenRange is shared by holds that follow each other by handoffs.
type tokenRange struct {
	token uint64    // of the row; the tokens of the holds count from it
	since time.Time // the first handoff; zero if there was none
}

// maxHandoffTime is how long a lock is handed over inside the process before others may
// have it.
const maxHandoffTime = 100 * time.Millisecond

// handoffTrust is how long after a statement that found the row to be ours a handoff needs no
// look. A holder that lost its row earlier hands nothing over, and reports the loss.
const handoffTrust = 2 * time.Millisecond

// handOff hands a lock over to the next waiter of the process, if there is one and other
// processes have not waited for too long. The row is not written, so the lease must be live,
// and no transaction under Guard.
func (l *Locker) handOff(t *hold) bool {
	left := &handoff{tokenRange: t.tokens, last: t.token, lease: t.lease}
	switch {
	case !l.handoff:
		return false
	case left.since.IsZero():
		left.since = time.Now()
	case time.Since(left.since) > maxHandoffTime:
		return false
	}
	return t.waiter.HasNext() && l.confirmed(t.lease) && t.waiter.Offer(left)
}

// confirmed reports whether the lease owned its row a moment ago. If not, or if the database
// does not reply, a statement must release the row, or find it lost.
func (l *Locker) confirmed(ls *lease.Lease) bool {
	if time.Since(l.watchdog.Seen(ls)) < handoffTrust {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), confirmBound)
	defer cancel()
	mine, sent, err := l.repo.Confirm(ctx, ls.Claim)
	if err == nil && mine {
		l.watchdog.Confirm(ls, sent)
	}
	return err == nil && mine
}

// adopt makes a hold of a handoff, if that covers what the call requests. If not, it returns
// nil, and an attempt must replace the row.
func (c *call) adopt(left *handoff) *Lock {
	l := c.l
	if left.last+1 >= left.tokenRange.token+store.TokenRange {
		return nil
	}
	l.mu.Lock()
	if l.closed || l.holds[c.key()] != nil {
		l.mu.Unlock()
		return nil
	}
	t := &hold{key: c.key(), token: left.last + 1, tokens: left.tokenRange, waiter: c.waiter, lease: left.lease}
	k := l.addHandle(c.ctx, t, c.lease, time.Now())
	if !l.watchdog.Pass(left.lease, k.requested, c.lease, func() { l.onLoss(t) }) {
		l.mu.Unlock()
		return nil
	}
	l.holdBegan(c, t)
	return k
}

// leaveQueue removes a waiter from its queue, and releases a handoff that no other waiter
// takes.
func (l *Locker) leaveQueue(w *waiter) {
	left, last := w.Leave()
	if last {
		l.waker.Leave(w.Name)
	}
	l.releaseHandoff(left)
}

// releaseHandoff releases the row of a handoff in the background.
func (l *Locker) releaseHandoff(left *handoff) {
	if left != nil {
		l.releaser.Add(left.lease.Claim, l.watchdog.Stop(left.lease), false, time.Now())
		l.repo.HoldEnded()
	}
}
