package lease

import (
	"log/slog"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

const (
	// maxSending limits the batches in flight. A further one is sent only if the last has had
	// no reply for stalled: on a healthy database, batches follow each other on the reserved
	// connection and take none from the pool.
	maxSending = 4
	stalled    = 100 * time.Millisecond
)

// plan schedules ls, whose row was renewed for length at sent. The caller holds mu.
func (d *Watchdog) plan(ls *Lease, sent time.Time, length time.Duration) {
	switch {
	case ls.ended:
		return
	case ls.requested.Auto && !ls.unbound():
		ls.due = time.Time{}
		return
	case ls.short: // for a short time only, so that brief holds send nothing more
		ls.due = sent.Add(min(length, d.length) / 2)
	case ls.requested.Auto:
		ls.due = sent.Add(min(length, d.length) / 3)
	case ls.needsRenewal():
		ls.due = sent.Add(length / 3)
	default:
		// There is nothing to renew, but a change of owner must be noticed.
		ls.due = sent.Add(max(length/3, time.Second))
	}
	if ls.due.After(ls.end()) {
		ls.due = time.Time{}
		return
	}
	d.wake(ls.due)
}

// wake schedules run for at or earlier. The caller holds mu.
func (d *Watchdog) wake(at time.Time) {
	if d.ctx.Err() == nil && (d.next.IsZero() || at.Before(d.next)) {
		d.next = at
		d.timer.Reset(time.Until(at))
	}
}

// run sends what is due, and schedules the rest.
func (d *Watchdog) run() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx.Err() != nil {
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
	var first time.Time
	for ls := range d.leases {
		if !ls.queued && !ls.due.IsZero() && !(d.beginning && ls.unbound() && !ls.short) && (first.IsZero() || ls.due.Before(first)) {
			first = ls.due
		}
	}
	if !first.IsZero() {
		d.wake(first)
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
		ls.due = now.Add(timeout + retry) // unless there is a reply
		if b.holds > 0 {
			ls.rowHolds = 0 // until there is a reply
		}
		ls.mayBeBound = ls.mayBeBound || b.session != nil
	}
	d.sending++
	d.sent, b.began = now, now
	d.done.Go(func() {
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

// timeouts returns the time limit of a statement, and the delay after one that failed. They
// leave time for another try.
func (d *Watchdog) timeouts(r renewal) (timeout, retry time.Duration) {
	timeout = min(d.length/4, 5*time.Second)
	switch {
	case r.short:
		timeout = min(timeout, store.GrantLease/8)
	case r.length > 0:
		timeout = min(timeout, max(r.length/4, 100*time.Millisecond))
	}
	return timeout, min(timeout/2, time.Second)
}

// A batch is a set of leases that one statement can renew: their rows get the same values.
type batch struct {
	renewal
	leases []*Lease
	began  time.Time
}

// A renewal has the values that a statement writes. If length is 0, the rows are only read;
// if holds is 0, the row's value is left.
type renewal struct {
	length  time.Duration
	holds   int
	longer  bool     // the rows already expire later, so the renewal only shows who owns them
	short   bool     // the rows have the leases of grants that releases made
	session *session // to which it binds the rows; may be nil
}

// dueBatches collects the leases that are due, and those that are due within half an
// interval, so that locks acquired at different times are renewed together. The caller holds
// mu.
func (d *Watchdog) dueBatches() []batch {
	now := time.Now()
	soon := now.Add(d.length / 6)
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
		case ls.short && ls.requested.Auto: // from now on, the lease is like any other, and bound when it is due again
			key.length = d.length
		case ls.unbound():
			key.length, key.longer, key.session = d.length, ls.promised.Sub(now) >= d.length, d.session
		case ls.needsRenewal():
			// Rounded up to milliseconds, so that equal requests share a batch.
			key.length = max(ls.requested.Until.Sub(now), time.Millisecond).Truncate(time.Millisecond) + time.Millisecond
		default:
			key.holds = 0
		}
		key.short = ls.short
		if ls.crowded && key.length > 0 && !ls.due.After(now) && d.startSingle(ls, key) {
			timeout, retry := d.timeouts(key)
			ls.due = now.Add(timeout + retry) // in a batch, unless there is a reply
			continue
		}
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

// renewBatch renews one batch. Leases that failed, or whose rows were locked and so skipped,
// are tried again soon.
func (d *Watchdog) renewBatch(b batch) {
	claims := claimsOf(b.leases)
	timeout, _ := d.timeouts(b.renewal)
	count := -1
	var sent time.Time
	if b.length > 0 {
		ctx, cancel := store.WithRetryLimit(d.ctx, timeout)
		var err error
		count, sent, err = d.repo.Renew(ctx, claims, b.length, b.holds, b.session.number())
		cancel()
		if err != nil {
			d.failed(b, b.leases, err)
			return
		}
		if count == len(claims) {
			d.uncrowded(b.leases)
			d.extendedAll(b, b.leases, sent)
			return
		}
	}
	ctx, cancel := store.WithRetryLimit(d.ctx, timeout)
	defer cancel()
	rows, looked, err := d.repo.Look(ctx, store.Names(claims))
	if err != nil {
		d.failed(b, b.leases, err)
		return
	}
	o := d.classify(b, sent, rows, looked)
	if len(o.gone) > 0 {
		d.lost(b, o.gone)
	}
	if len(o.seen) > 0 {
		d.renewed(b, o.seen)
	}
	switch {
	case b.length == 0 || b.longer && len(o.seen) > 0:
	case len(o.renewed)+len(o.longer) == count:
		// As many as the statement counted, so it renewed these.
		d.uncrowded(o.renewed)
		d.extendedAll(b, append(o.renewed, o.longer...), sent)
	default:
		// A read may show what is rolled back later, or what another statement wrote. Only
		// the reply to a write extends trust.
		o.skipped = append(o.skipped, o.longer...)
		if len(o.renewed) > 0 {
			o.skipped = append(o.skipped, d.renewAgain(b, o.renewed)...)
		}
	}
	d.renewSkipped(b, o.skipped)
}

// An outcome sorts the leases of a batch by what their rows show after the renewal.
type outcome struct {
	gone    []*Lease // the row has another owner
	seen    []*Lease // the row is owned, and no longer lease was due
	renewed []*Lease // renewed by the statement, or by another one at the same time
	longer  []*Lease // unchanged by the statement, because the row expires later
	skipped []*Lease // the row was locked
}

// classify compares the rows, read at looked, with a renewal that was sent at sent.
func (d *Watchdog) classify(b batch, sent time.Time, rows map[string]store.Row, looked time.Time) (o outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ls := range b.leases {
		r, ok := rows[ls.Claim.Name]
		if ls.ended {
			continue
		}
		if !ok || r.Owner != ls.Claim.Owner {
			o.gone = append(o.gone, ls)
			continue
		}
		ls.markSeen(looked)
		switch {
		case b.length == 0:
			left := min(r.Remaining, ls.promised.Sub(looked))
			if ls.extraMargin > 0 {
				left = min(left, ls.end().Sub(looked))
			}
			d.plan(ls, looked, left)
			o.seen = append(o.seen, ls)
		case b.longer && !ls.promised.Before(sent.Add(b.length)):
			d.plan(ls, sent, b.length)
			o.seen = append(o.seen, ls)
		case r.Lease > b.length:
			o.longer = append(o.longer, ls)
		case r.Lease >= b.length-time.Since(sent)-Margin(b.length):
			o.renewed = append(o.renewed, ls)
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

// extendedAll records that a batch has renewed leases.
func (d *Watchdog) extendedAll(b batch, leases []*Lease, sent time.Time) {
	for _, ls := range leases {
		d.extended(ls, sent, b.renewal)
	}
	d.renewed(b, leases)
}

// uncrowded records that no row of leases was skipped, so none needs its own statement.
func (d *Watchdog) uncrowded(leases []*Lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ls := range leases {
		ls.crowded = false
	}
}

// renewAgain renews leases a second time, and returns those that may not have been renewed.
func (d *Watchdog) renewAgain(b batch, leases []*Lease) []*Lease {
	timeout, _ := d.timeouts(b.renewal)
	ctx, cancel := store.WithRetryLimit(d.ctx, timeout)
	defer cancel()
	count, sent, err := d.repo.Renew(ctx, claimsOf(leases), b.length, b.holds, b.session.number())
	if err != nil || count < len(leases) {
		return leases
	}
	d.extendedAll(b, leases, sent)
	return nil
}

// failed records a failure for leases of a batch, unless another statement has renewed them
// meanwhile.
func (d *Watchdog) failed(b batch, leases []*Lease, err error) {
	if d.ctx.Err() != nil {
		return
	}
	_, retry := d.timeouts(b.renewal)
	level := slog.LevelDebug // logged before
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
	d.log.Log(d.ctx, level, "mysqllock: renewal failed, trying again", "locks", len(leases), "first", store.NameOf(leases[0].Claim.Name), "err", err)
	if b.length > 0 {
		d.failures.Add(1)
		d.reported(len(leases), 0, err)
	}
}

// lost ends those leases that no longer own their rows, according to committed data.
func (d *Watchdog) lost(b batch, leases []*Lease) {
	timeout, retry := d.timeouts(b.renewal)
	ctx, cancel := store.WithRetryLimit(d.ctx, timeout)
	defer cancel()
	owned, err := d.repo.Owned(ctx, claimsOf(leases))
	if err != nil {
		d.failed(b, leases, err)
		return
	}
	var lost []*Lease
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

// renewed counts and reports leases that were renewed or checked, and logs the recovery of
// those that had failed before.
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
		d.log.Info("mysqllock: renewals succeed again", "locks", recovered, "first", first)
	}
	if b.length > 0 {
		d.renewals.Add(int64(len(served)))
		d.reported(len(b.leases), len(served), nil)
	}
}
