package mysqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A waitErr is why the database has not reported who holds a lock.
type waitErr struct {
	err     error
	probing bool // a probe is in flight
	slow    bool // the database replies to others, and has had little time for this statement
}

// lastErr returns why the database could not be asked for w's lock, by w or by the head of
// its queue. It is zero if another owner holds the lock.
func (r *registry) lastErr(w *waiter) waitErr {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[w.name]
	switch {
	case q == nil:
		return waitErr{}
	case q.head.failed != nil: // the poller's last look for it
		return waitErr{err: q.head.failed}
	case q.failed != nil:
		return waitErr{err: q.failed}
	case q.asking && !q.known && (q.probed || r.answeredAt.After(q.asked)):
		return waitErr{err: errNoAnswer, slow: time.Since(q.asked) < slowReply}
	case q.asking && !q.known && time.Since(q.asked) < 2*probeAfter:
		if head, c := q.head, q.claim; !q.probing && time.Since(q.asked) >= probeSoon { // before, the reply itself may arrive
			q.probing = true
			r.start(func() { r.probe(r.ctx, head, c) })
		}
		return waitErr{err: errNoAnswer, probing: true}
	case q.asking && (!q.known || time.Since(q.asked) > replyTimeout || q.granted && time.Since(q.asked) > replyTimeoutAfterHold):
		return waitErr{err: errNoAnswer}
	}
	return waitErr{}
}

// replyTimeout is how long a statement may have no reply, after the database has reported
// the lock as held, before that counts as an outage.
const replyTimeout = 3 * probeInterval / 2

// replyTimeoutAfterHold is the same after a grant to this process.
const replyTimeoutAfterHold = probeInterval

// slowReply is how long a statement may have no reply, from a database that replies to
// others, before that counts as an outage.
const slowReply = 500 * time.Millisecond

// refusal is the error of a call with noWait behind a sleeping head. It includes the error
// of the poller's last look for that head.
func (r *registry) refusal(name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if q := r.queues[name]; q != nil && !q.asking && q.head.failed != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, q.head.failed)
	}
	return ErrNotAcquired
}

// probe finds out what is in the way of the head's statement.
func (r *registry) probe(ctx context.Context, w *waiter, c store.Claim) store.RowState {
	ctx, cancel := context.WithTimeout(ctx, probeInterval)
	defer cancel()
	state, err := r.repo.Probe(ctx, c)
	if err != nil && ctx.Err() != nil {
		err = unanswered(err)
	}
	r.probed(w, state, err)
	return state
}

// probed records what a probe has found in the way of the head's statement.
func (r *registry) probed(w *waiter, state store.RowState, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.answeredAt = time.Now()
	}
	q := r.queues[w.name]
	switch {
	case q == nil || q.head != w || !q.asking:
		return
	case err != nil:
		q.known, q.failed = false, err
	case state != store.RowFree:
		q.known, q.granted, q.failed, q.asked = true, false, nil, time.Now()
		w.failed = nil
		if state == store.RowLocked {
			r.refuseNoWait(q)
		}
	default:
		q.failed = nil // the database answers, but not this statement
	}
	q.probed = true
}
