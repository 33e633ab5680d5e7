package lease

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

const (
	// maxSending limits the batches in flight. Another batch is sent beside one in flight only if
	// that has had no reply for stalled. So on a healthy database, batches follow each other on
	// the reserved connection, and use no other connection of the pool.
	maxSending = 4
	stalled    = 100 * time.Millisecond
)

// plan schedules the next renewal or check of ls, whose row was last renewed for length by a
// statement sent at sent. The caller holds mu.
func (d *Watchdog) plan(ls *Lease, sent time.Time, length time.Duration) {
	switch {
	case ls.ended:
		return
	case ls.requested.Auto && !ls.unbound():
		ls.due = time.Time{}
		return
	case ls.short: // later than for other leases, so that a brief hold sends nothing more
		ls.due = sent.Add(min(length, d.Length) / 2)
	case ls.requested.Auto:
		ls.due = sent.Add(min(length, d.Length) / 3)
	case ls.needsRenewal():
		ls.due = sent.Add(length / 3)
	default:
		// There is nothing to renew, but the watchdog must notice a change of owner.
		ls.due = sent.Add(max(length/3, time.Second))
	}
	if ls.due.After(ls.end()) {
		ls.due = time.Time{}
		return
	}
	d.wake(ls.due)
}

// wake makes run begin at the given time at the latest. The caller holds mu.
func (d *Watchdog) wake(at time.Time) {
	if (d.next.IsZero() || at.Before(d.next)) && d.group.Ctx.Err() == nil {
		d.next = at
		d.timer.Reset(time.Until(at))
	}
}

// run sends the batches that are due, and schedules itself for the others.
func (d *Watchdog) run() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.group.Ctx.Err() != nil {
		return
	}
	d.next = time.Time{}
	if due := d.dueBatches(); len(due) > 0 {
		d.queue = append(d.queue, due...)
		slices.SortStableFunc(d.queue, func(a, b batch) int { return a.leases[0].trusted.Compare(b.leases[0].trusted) })
	}
	for len(d.queue) > 0 && d.maySend() {
		b := d.queue[0]
		d.queue = d.queue[1:]
		d.send(b)
	}
	if len(d.queue) > 0 && d.sending < maxSending {
		d.wake(d.sent.Add(stalled))
	}
	for ls := range d.leases {
		if !ls.queued && !ls.due.IsZero() && !(d.beginning && ls.unbound() && !ls.short) {
			d.wake(ls.due)
		}
	}
}

// maySend reports whether a batch may be sent now. The caller holds mu.
func (d *Watchdog) maySend() bool {
	return d.sending == 0 || d.sending < maxSending && time.Since(d.sent) >= stalled
}

// send renews a batch on a goroutine of its own. The caller holds mu.
func (d *Watchdog) send(b batch) {
	now := time.Now()
	for _, ls := range b.leases {
		ls.queued = false
	}
	b.leases = slices.DeleteFunc(b.leases, func(ls *Lease) bool { return ls.ended })
	if len(b.leases) == 0 {
		return
	}
	timeout, retry := d.timeouts(b.renewal)
	for _, ls := range b.leases {
		ls.sending++
		ls.due = now.Add(timeout + retry) // if there is no reply
		if b.holds > 0 {
			ls.rowHolds = 0 // unknown until there is a reply
		}
		ls.mayBeBound = ls.mayBeBound || b.session != nil
	}
	d.sending++
	d.sent, b.began = now, now
	d.group.Go(func() {
		d.renewBatch(b)
		d.mu.Lock()
		d.sending--
		for _, ls := range b.leases {
			ls.sending--
		}
		d.mu.Unlock()
		d.run()
	})
}

// timeouts returns the time limit of a statement, and the delay after a failed one. Both are short
// enough that there is time for another try.
func (d *Watchdog) timeouts(r renewal) (timeout, retry time.Duration) {
	timeout = min(d.Length/4, 5*time.Second)
	switch {
	case r.short:
		timeout = min(timeout, store.GrantLease/8)
	case r.length > 0:
		timeout = min(timeout, max(r.length/4, 100*time.Millisecond))
	}
	return timeout, min(timeout/2, time.Second)
}

// A batch is a set of leases that one statement renews: their rows get the same values.
type batch struct {
	renewal
	leases []*Lease
	began  time.Time
}

// A renewal has the values that a statement writes. If length is 0, the rows are only read. If
// holds is 0, the number of handles in the rows is unchanged.
type renewal struct {
	length  time.Duration
	holds   int
	short   bool     // the rows have the short leases of grants by releases
	session *session // the session to which the renewal binds the rows, or nil
}

// dueBatches collects the leases that are due. If there are any, it adds those that are due within
// half an interval, so that locks acquired at different times are renewed together. The caller
// holds mu.
func (d *Watchdog) dueBatches() []batch {
	now := time.Now()
	soon := now.Add(d.Length / 6)
	due := map[renewal][]*Lease{}
	urgent := false
	for ls := range d.leases {
		if ls.due.IsZero() || ls.due.After(soon) || ls.queued || ls.sending > 0 && ls.due.After(now) {
			continue
		}
		if ls.unbound() && !ls.short && d.session == nil && (d.beginning || !now.Before(d.beginAfter)) {
			if !ls.due.After(now) {
				d.startSession()
			}
			continue // until the session has begun
		}
		urgent = urgent || !ls.due.After(now)
		var key renewal
		if ls.holds != ls.rowHolds {
			key.holds = ls.holds
		}
		switch {
		case ls.short && ls.requested.Auto: // not bound yet: only when the extended lease is due again
			key.length = d.Length
		case ls.unbound() && d.session == nil && ls.promised.Sub(now) >= d.Length:
			key.holds = 0 // no session has begun, but the row needs no longer lease yet
		case ls.unbound():
			key.length, key.session = d.Length, d.session
		case ls.needsRenewal():
			// Rounded up to milliseconds, so that equal requests share a batch.
			key.length = max(ls.requested.Until.Sub(now), time.Millisecond).Truncate(time.Millisecond) + time.Millisecond
		default:
			key.holds = 0
		}
		key.short = ls.short
		due[key] = append(due[key], ls)
	}
	if !urgent {
		return nil
	}
	var batches []batch
	for key, leases := range due {
		for _, ls := range leases {
			ls.queued, ls.due = true, time.Time{}
		}
		// The lease that is nearest to its loss goes first.
		slices.SortFunc(leases, func(a, b *Lease) int { return a.trusted.Compare(b.trusted) })
		for part := range slices.Chunk(leases, store.BatchSize) {
			batches = append(batches, batch{renewal: key, leases: part})
		}
	}
	return batches
}

// renewBatch sends the statement of a batch. Leases that were not renewed, because the statement
// failed or skipped their locked rows, are tried again soon.
func (d *Watchdog) renewBatch(b batch) {
	var count int
	var sent time.Time
	if b.length > 0 {
		var err error
		if count, sent, err = d.sendRenewal(b, b.leases); err != nil {
			d.failed(b, b.leases, err)
			return
		}
		if count == len(b.leases) {
			d.extendedAll(b, b.leases, sent)
			return
		}
	}
	ctx, cancel := d.limited(b.renewal)
	defer cancel()
	rows, looked, err := d.repo.Look(ctx, store.Names(claimsOf(b.leases)))
	if err != nil {
		d.failed(b, b.leases, err)
		return
	}
	o := d.classify(b, sent, rows, looked)
	if len(o.gone) > 0 {
		d.lost(b, o.gone)
	}
	switch {
	case b.length == 0:
		d.renewed(b, o.kept)
	case len(o.kept)+len(o.longer) == count && (len(o.longer) == 0 || !o.ended):
		// The statement counted exactly these, so it has renewed them. But if a lease has ended since, it
		// may have counted that one instead of one in longer, whose row does not show the renewal.
		d.extendedAll(b, append(o.kept, o.longer...), sent)
	default:
		// The read may have seen an uncommitted change, or the write of another statement. Only
		// the reply to a write extends trust.
		o.skipped = append(o.skipped, o.longer...)
		if len(o.kept) == 0 {
			break
		}
		if count, sent, err := d.sendRenewal(b, o.kept); err == nil && count == len(o.kept) {
			d.extendedAll(b, o.kept, sent)
		} else {
			o.skipped = append(o.skipped, o.kept...)
		}
	}
	d.renewSkipped(b, o.skipped)
}

// sendRenewal renews leases of a batch with one statement. It returns how many it has renewed.
func (d *Watchdog) sendRenewal(b batch, leases []*Lease) (count int, sent time.Time, err error) {
	ctx, cancel := d.limited(b.renewal)
	defer cancel()
	return d.repo.Renew(ctx, claimsOf(leases), b.length, b.holds, b.session.number())
}

// limited returns a context with the time limit of a statement.
func (d *Watchdog) limited(r renewal) (context.Context, context.CancelFunc) {
	timeout, _ := d.timeouts(r)
	return store.WithRetryLimit(d.group.Ctx, timeout)
}

// An outcome classifies the leases of a batch by what a read of their rows has shown after the
// renewal.
type outcome struct {
	gone    []*Lease // the row has another owner
	kept    []*Lease // renewed by the statement, or by another one at the same time; or only read
	longer  []*Lease // unchanged by the statement, because the row expires later anyway
	skipped []*Lease // not renewed, because the row was locked
	ended   bool     // some of the leases have ended, or are in gone
}

// classify compares rows, which were read at looked, with a renewal that was sent at sent.
func (d *Watchdog) classify(b batch, sent time.Time, rows map[string]store.Row, looked time.Time) (o outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ls := range b.leases {
		r, ok := rows[ls.Claim.Name]
		if ls.ended {
			o.ended = true
			continue
		}
		if !ok || r.Owner != ls.Claim.Owner {
			o.ended = true
			o.gone = append(o.gone, ls)
			continue
		}
		ls.markSeen(looked)
		switch {
		case b.length == 0:
			left := min(r.Remaining, ls.promised.Sub(looked))
			if ls.adopted {
				left = min(left, ls.end().Sub(looked))
			}
			d.plan(ls, looked, left)
			o.kept = append(o.kept, ls)
		case r.Lease > b.length:
			o.longer = append(o.longer, ls)
		case r.Lease >= b.length-time.Since(sent)-Margin(b.length):
			o.kept = append(o.kept, ls)
		default:
			o.skipped = append(o.skipped, ls)
		}
	}
	return o
}

func claimsOf(leases []*Lease) []store.Claim {
	claims := make([]store.Claim, len(leases))
	for i, ls := range leases {
		claims[i] = ls.Claim
	}
	return claims
}

// extendedAll records that a batch has renewed the given leases.
func (d *Watchdog) extendedAll(b batch, leases []*Lease, sent time.Time) {
	for _, ls := range leases {
		d.extended(ls, sent, b.renewal)
	}
	d.renewed(b, leases)
}

// failed records and logs a failure for leases of a batch, except those that another statement has
// renewed meanwhile.
func (d *Watchdog) failed(b batch, leases []*Lease, err error) {
	if d.group.Ctx.Err() != nil {
		return
	}
	_, retry := d.timeouts(b.renewal)
	level := slog.LevelDebug // unless this is the first failure of one of the leases
	d.mu.Lock()
	leases = slices.DeleteFunc(slices.Clone(leases), func(ls *Lease) bool { return ls.renewed.After(b.began) })
	for _, ls := range leases {
		if !ls.failing && !ls.ended {
			ls.failing, level = true, slog.LevelWarn
		}
		ls.due = time.Now().Add(retry)
	}
	d.mu.Unlock()
	if len(leases) == 0 {
		return
	}
	d.Log.Log(d.group.Ctx, level, "mysqllock: renewal failed, trying again", "locks", len(leases), "first", store.NameOf(leases[0].Claim.Name), "err", err)
	if b.length > 0 {
		d.failures.Add(1)
		d.Reported(len(leases), 0, err)
	}
}

// lost ends those of the leases whose rows have another owner, according to committed data.
func (d *Watchdog) lost(b batch, leases []*Lease) {
	ctx, cancel := d.limited(b.renewal)
	defer cancel()
	owned, err := d.repo.Owned(ctx, claimsOf(leases))
	if err != nil {
		d.failed(b, leases, err)
		return
	}
	var lost []*Lease
	_, retry := d.timeouts(b.renewal)
	d.mu.Lock()
	for _, ls := range leases {
		switch {
		case ls.ended:
		case slices.Contains(owned, ls.Claim):
			ls.due = time.Now().Add(retry)
		default:
			ls.ownerChanged = true
			d.remove(ls)
			lost = append(lost, ls)
		}
	}
	d.mu.Unlock()
	for _, ls := range lost {
		ls.holder.LeaseLost()
	}
}

// renewed counts and reports leases that were renewed or checked, and logs if renewals that had
// failed before succeed again.
func (d *Watchdog) renewed(b batch, served []*Lease) {
	recovered, first := 0, ""
	d.mu.Lock()
	for _, ls := range served {
		if ls.failing {
			ls.failing = false
			if recovered++; recovered == 1 {
				first = store.NameOf(ls.Claim.Name)
			}
		}
	}
	d.mu.Unlock()
	if recovered > 0 {
		d.Log.Info("mysqllock: renewals succeed again", "locks", recovered, "first", first)
	}
	if b.length > 0 {
		d.renewals.Add(int64(len(served)))
		d.Reported(len(b.leases), len(served), nil)
	}
}
