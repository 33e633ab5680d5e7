package mysqllock

import (
	"cmp"
	"context"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/undo"
)

// A batch sends the statements that acquire several names together. Like an attempt, it continues
// after its caller has returned, and is then undone when the reply arrives.
type batch struct {
	l       *Locker
	req     store.BatchRequest
	calls   []*call // one for each name, each the head of the name's queue
	ctx     context.Context
	cancel  context.CancelFunc
	grant   store.BatchGrant
	err     error
	probing *time.Timer
	inFlight
}

// add adds a call that is the head of its name's queue.
func (b *batch) add(c *call) {
	c.waiter.State.Sent(c.waiter, store.Claim{Name: c.name, Owner: b.req.Owner})
	c.waiter.Admit(true)
	b.req.Names, b.calls = append(b.req.Names, c.name), append(b.calls, c)
}

func (b *batch) start() {
	b.ctx, b.cancel = context.WithTimeout(b.l.background, attemptTimeout(b.req.Lease))
	b.probing = background.AfterFunc(outage.ProbeAfter, b.probe)
	b.l.working.Go(b.run)
}

func (b *batch) run() {
	b.grant, b.err = b.l.repo.AcquireAll(b.ctx, b.req)
	b.err = outage.Describe(b.err)
	b.cancel()
	b.probing.Stop()
	for _, name := range b.req.Names[:b.grant.Granted] {
		b.l.waker.Granted(name)
	}
	if b.replied() {
		b.undo()
	}
}

// probe finds out whether the database replies, and whether one of the names is held or being
// added. It returns the delay before the next probe, or 0 if there must be none.
func (b *batch) probe() (again time.Duration) {
	if !b.l.enter() {
		return 0
	}
	defer b.l.working.Done()
	ctx, cancel := context.WithTimeout(b.ctx, outage.ProbeInterval)
	defer cancel()
	rows, _, err := b.l.repo.Look(ctx, b.req.Names)
	state, missing := store.RowFree, store.Claim{}
	for _, c := range b.req.Claims(len(b.calls)) {
		row, found := rows[c.Name]
		if !found {
			missing = c
		} else if row.Remaining > 0 && row.Owner != c.Owner {
			state = store.RowHeld
		}
	}
	if err == nil && state == store.RowFree && missing != (store.Claim{}) {
		state, err = b.l.repo.Probe(ctx, missing)
	}
	if b.ctx.Err() != nil {
		return 0
	}
	err = outage.DescribeIn(ctx, err)
	for _, c := range b.calls {
		b.l.outages.Probed(c.waiter.State, c.waiter, state, err)
	}
	return outage.ProbeInterval
}

// undo releases whatever the batch has acquired or may have acquired, and leaves the queues.
func (b *batch) undo() {
	if b.err == nil {
		b.l.releaseUnused(b.grant.Unwanted, b.req.Lease)
		b.giveBack(0)
		return
	}
	if store.OutcomeUnknown(b.err) {
		b.l.releaseLater(b.req.Claims(len(b.calls)), b.req.Lease, true)
	}
	for _, c := range b.calls {
		c.failed(b.err)
	}
	b.leave(0)
}

// giveBack releases the names that were granted, from the i-th on, and leaves their queues.
func (b *batch) giveBack(i int) {
	unused := b.req.Claims(b.grant.Granted)[i:]
	b.l.releaseUnused(unused, b.req.Lease)
	for range unused {
		b.l.repo.HoldEnded()
	}
	b.leave(i)
}

// leave leaves the queues of the names from the i-th on.
func (b *batch) leave(i int) {
	for _, c := range b.calls[i:] {
		b.l.leaveQueue(c.waiter)
	}
}

// releaseUnused releases granted rows that no hold uses, so that they are free when the call returns. What
// the database does not confirm in time is released in the background.
func (l *Locker) releaseUnused(claims []store.Claim, lease time.Duration) {
	if len(claims) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), confirmTimeout)
	defer cancel()
	freed, next, err := l.repo.ReleaseAll(ctx, claims)
	if freed > 0 {
		l.waker.Freed(store.Names(claims), next)
	}
	if err != nil || freed < int64(len(claims)) {
		l.releaseLater(claims, lease, false)
	}
}

// releaseLater releases rows in the background. mayBeGranted means that they may yet be granted.
func (l *Locker) releaseLater(claims []store.Claim, lease time.Duration, mayBeGranted bool) {
	for _, c := range claims {
		l.releaser.Add(c, lease, mayBeGranted, time.Now())
	}
}

// releaseRows releases the rows of holds, and returns an error for each.
func (l *Locker) releaseRows(held []*hold) []error {
	errs := make([]error, len(held))
	claims, spans := make([]store.Claim, len(held)), make([]time.Duration, len(held))
	for i, h := range held {
		ls := h.lease.Load()
		claims[i], spans[i] = ls.Claim, l.watchdog.Stop(ls)
	}
	ctx, cancel := context.WithTimeout(context.Background(), unlockTimeout)
	defer cancel()
	freed, unknown, err := undo.ReleaseAll(ctx, l.repo, claims, l.waker.Released)
	if err == nil && freed >= int64(len(held)) {
		return errs
	}
	ctx, cancel = context.WithTimeout(context.Background(), confirmTimeout)
	defer cancel()
	rows, _, lookErr := l.repo.Look(ctx, store.Names(claims))
	for i, c := range claims {
		switch row := rows[c.Name]; {
		case lookErr == nil && row.ReleasedBy(c):
		case lookErr == nil && row.Owner != c.Owner:
			if err == nil && !unknown { // otherwise the row may have been released and then acquired by another owner
				errs[i] = ErrLost
			}
		default:
			errs[i] = cmp.Or(err, lookErr, store.ErrRowLocked)
			l.releaser.Add(c, spans[i], false, time.Now())
		}
	}
	return errs
}
