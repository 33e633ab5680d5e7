package mysqllock

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
	"github.com/mysqllock/mysqllock/internal/undo"
)

// A watchdog keeps the leases of this process. It renews those that must go on, checks the
// rows of the others, and reports the loss of each by a timer that needs no reply from the
// database.
type watchdog struct {
	repo      leaseStore
	length    time.Duration // of a renewed lease
	releaser  *undo.Releaser
	log       *slog.Logger
	observers observers
	renewals  atomic.Int64
	failures  atomic.Int64

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex // protects following fields, and those of every lease
	leases  map[*lease]struct{}
	next    time.Time // when run begins; zero if it is not scheduled
	timer   *time.Timer
	queue   []batch   // due, but not sent yet; the most urgent first
	sending int       // batches in flight
	sent    time.Time // when the last of them was sent
	single  int       // renewals of one lease in flight

	session     *session // nil if there is none alive
	lastSession store.SessionID
	beginning   bool      // a session is about to begin
	beginAfter  time.Time // after a failure to begin one
}

const (
	// maxSending limits the batches in flight. A second one is sent only if the others have
	// had no reply for stalled: on a healthy database, they follow each other on the reserved
	// connection and take none from the pool.
	maxSending = 4
	stalled    = 100 * time.Millisecond
	// maxSingle limits the statements that renew, or release, one row and may wait for it.
	maxSingle = 4
)

func newWatchdog(repo leaseStore, self store.Process, length time.Duration, releaser *undo.Releaser, log *slog.Logger, observers observers) *watchdog {
	d := &watchdog{
		repo: repo, length: length, releaser: releaser, log: log, observers: observers,
		leases: map[*lease]struct{}{}, lastSession: self.FirstSession() - 1,
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// close ends the watchdog's goroutines and waits for them.
func (d *watchdog) close() {
	d.mu.Lock()
	d.cancel()
	if d.timer != nil {
		d.timer.Stop()
	}
	if d.session != nil {
		d.stopSession(d.session)
	}
	d.mu.Unlock()
	d.done.Wait()
}

// plan schedules ls, whose row was renewed for length at sent. The caller holds mu.
func (d *watchdog) plan(ls *lease, sent time.Time, length time.Duration) {
	switch {
	case ls.ended:
		return
	case ls.requested.auto && ls.session != nil:
		ls.due = time.Time{}
		return
	case ls.requested.auto:
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

// wake schedules run for at, or earlier. The caller holds mu.
func (d *watchdog) wake(at time.Time) {
	switch {
	case d.ctx.Err() != nil:
	case d.timer == nil:
		d.next = at
		d.timer = time.AfterFunc(time.Until(at), d.run)
	case d.next.IsZero() || at.Before(d.next):
		d.next = at
		d.timer.Reset(time.Until(at))
	}
}

// run sends what is due, and schedules the rest.
func (d *watchdog) run() {
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
		if !ls.queued && !ls.due.IsZero() && !(d.beginning && ls.unbound()) && (first.IsZero() || ls.due.Before(first)) {
			first = ls.due
		}
	}
	if !first.IsZero() {
		d.wake(first)
	}
}

// maySend reports whether a batch may be sent now. The caller holds mu.
func (d *watchdog) maySend() bool {
	return d.sending == 0 || d.sending < maxSending && time.Since(d.sent) >= stalled
}

// send runs serve on a goroutine of its own. The caller holds mu.
func (d *watchdog) send(b batch) {
	now := time.Now()
	for _, ls := range b.leases {
		ls.queued = false
	}
	b.leases = slices.DeleteFunc(b.leases, func(ls *lease) bool { return ls.ended })
	if len(b.leases) == 0 {
		return
	}
	bound, retry := d.bounds(b.promise)
	for _, ls := range b.leases {
		ls.sending++
		ls.due = now.Add(bound + retry) // unless there is a reply
		if b.holds > 0 {
			ls.rowHolds = 0 // until there is a reply
		}
		ls.mayBeBound = ls.mayBeBound || b.session != nil
	}
	d.sending++
	d.sent, b.began = now, now
	d.done.Go(func() {
		d.serve(b)
		d.mu.Lock()
		d.sending--
		for _, ls := range b.leases {
			ls.sending--
		}
		d.mu.Unlock()
		d.run()
	})
}

// bounds returns the time limit of a statement, and the delay after one that failed, which
// leave time for another try.
func (d *watchdog) bounds(p promise) (bound, retry time.Duration) {
	bound = min(d.length/4, 5*time.Second)
	if p.length > 0 {
		bound = min(bound, max(p.length/4, 100*time.Millisecond))
	}
	return bound, min(bound/2, time.Second)
}

// A batch has leases that one statement can renew: their rows get the same values.
type batch struct {
	promise
	leases []*lease
	began  time.Time
}

// A promise is what a renewal writes. Length 0 is for a look without a write; holds 0 leaves
// the row's value.
type promise struct {
	length  time.Duration
	holds   int
	longer  bool     // the rows expire later already: the renewal only shows who owns them
	session *session // to which it binds the rows; may be nil
}

// dueBatches collects the leases that are due, and those that will be due within half the
// interval, so that locks acquired at different times are renewed together. The caller holds
// mu.
func (d *watchdog) dueBatches() []batch {
	now := time.Now()
	soon := now.Add(d.length / 6)
	due := map[promise][]*lease{}
	urgent := false
	for ls := range d.leases {
		if ls.due.IsZero() || ls.due.After(soon) || ls.queued || ls.sending > 0 && ls.due.After(now) {
			continue
		}
		if ls.unbound() && d.session == nil && (d.beginning || !now.Before(d.beginAfter)) {
			if !ls.due.After(now) {
				d.startSession()
			}
			continue // until the session has begun
		}
		urgent = urgent || !ls.due.After(now)
		var key promise
		if ls.holds != ls.rowHolds {
			key.holds = ls.holds
		}
		switch {
		case ls.unbound():
			key.length, key.longer, key.session = d.length, ls.promised.Sub(now) >= d.length, d.session
		case ls.needsRenewal():
			// Rounded up to milliseconds, so that equal requests share a batch.
			key.length = max(ls.requested.until.Sub(now), time.Millisecond).Truncate(time.Millisecond) + time.Millisecond
		default:
			key.holds = 0
		}
		if ls.crowded && key.length > 0 && !ls.due.After(now) && d.startSingle(ls, key) {
			bound, retry := d.bounds(key)
			ls.due = now.Add(bound + retry) // in a batch, unless there is a reply
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
		// The nearest to its loss goes first.
		slices.SortFunc(leases, func(a, b *lease) int { return a.trusted.Compare(b.trusted) })
		for part := range slices.Chunk(leases, store.BatchSize) {
			batches = append(batches, batch{promise: key, leases: part})
		}
	}
	return batches
}

// serve renews one batch. Leases that failed, or whose rows were skipped because they are
// locked, are tried again soon.
func (d *watchdog) serve(b batch) {
	claims := claimsOf(b.leases)
	bound, _ := d.bounds(b.promise)
	count := -1
	var sent time.Time
	if b.length > 0 {
		ctx, cancel := store.WithRetryLimit(d.ctx, bound)
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
	ctx, cancel := store.WithRetryLimit(d.ctx, bound)
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
		// As many as the statement renewed, so these are the ones.
		d.uncrowded(o.renewed)
		d.extendedAll(b, append(o.renewed, o.longer...), sent)
	default:
		// A look may show what is rolled back later, or what another statement wrote: only
		// the reply to a write extends trust.
		o.skipped = append(o.skipped, o.longer...)
		if len(o.renewed) > 0 {
			o.skipped = append(o.skipped, d.again(b, o.renewed)...)
		}
	}
	d.skipped(b, o.skipped)
}

// An outcome is what a look shows of a batch after its renewal.
type outcome struct {
	gone    []*lease // of another owner
	seen    []*lease // ours, and nothing else was asked
	renewed []*lease // by the statement, or by another one at the same time
	longer  []*lease // unchanged by the statement, because their rows expire later
	skipped []*lease // because their rows are locked
}

// classify compares the rows, read at looked, with a renewal that was sent at sent.
func (d *watchdog) classify(b batch, sent time.Time, rows map[string]store.Row, looked time.Time) (o outcome) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ls := range b.leases {
		r, ok := rows[ls.claim.Name]
		if ls.ended {
			continue
		}
		if !ok || r.Owner != ls.claim.Owner {
			o.gone = append(o.gone, ls)
			continue
		}
		ls.showed(looked)
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
		case r.Lease >= b.length-time.Since(sent)-margin(b.length):
			o.renewed = append(o.renewed, ls)
		default:
			o.skipped = append(o.skipped, ls)
		}
	}
	return o
}

// claimsOf returns the claims of leases.
func claimsOf(leases []*lease) []store.Claim {
	claims := make([]store.Claim, len(leases))
	for i, ls := range leases {
		claims[i] = ls.claim
	}
	return claims
}

// extendedAll records that a batch has renewed leases.
func (d *watchdog) extendedAll(b batch, leases []*lease, sent time.Time) {
	for _, ls := range leases {
		d.extended(ls, sent, b.promise)
	}
	d.renewed(b, leases)
}

// uncrowded records that no row of leases was skipped, so that none needs a statement of
// its own.
func (d *watchdog) uncrowded(leases []*lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ls := range leases {
		ls.crowded = false
	}
}

// again renews leases a second time, and returns those that may not have been renewed.
func (d *watchdog) again(b batch, leases []*lease) []*lease {
	bound, _ := d.bounds(b.promise)
	ctx, cancel := store.WithRetryLimit(d.ctx, bound)
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
func (d *watchdog) failed(b batch, leases []*lease, err error) {
	if d.ctx.Err() != nil {
		return
	}
	_, retry := d.bounds(b.promise)
	level := slog.LevelDebug // logged before
	d.mu.Lock()
	leases = slices.DeleteFunc(slices.Clone(leases), func(ls *lease) bool { return ls.renewed.After(b.began) })
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
	d.log.Log(d.ctx, level, "mysqllock: renewal failed, trying again", "locks", len(leases), "first", leases[0].claim.Name, "err", err)
	if b.length > 0 {
		d.failures.Add(1)
		d.observers.renewal(RenewalInfo{Locks: len(leases), Err: err})
	}
}

// lost ends those leases that do not own their rows any more, by committed data.
func (d *watchdog) lost(b batch, leases []*lease) {
	bound, retry := d.bounds(b.promise)
	ctx, cancel := store.WithRetryLimit(d.ctx, bound)
	defer cancel()
	mine, err := d.repo.Owned(ctx, claimsOf(leases))
	if err != nil {
		d.failed(b, leases, err)
		return
	}
	var lost []*lease
	d.mu.Lock()
	for _, ls := range leases {
		switch {
		case ls.ended:
		case slices.Contains(mine, ls.claim):
			ls.due = time.Now().Add(retry)
		default:
			ls.ownerChanged = true
			d.remove(ls)
			lost = append(lost, ls)
		}
	}
	d.mu.Unlock()
	for _, ls := range lost {
		ls.onLoss()
	}
}

// skipped renews leases one by one whose rows a batch has skipped: in a crowd of callers, a
// row may always be locked. Those that get no statement of their own are in a batch again
// soon. It logs leases with less than a third of their time left.
func (d *watchdog) skipped(b batch, leases []*lease) {
	if len(leases) == 0 {
		return
	}
	_, retry := d.bounds(b.promise)
	now := time.Now()
	var starving []*lease
	d.mu.Lock()
	for _, ls := range leases {
		if ls.ended {
			continue
		}
		ls.due = now.Add(retry)
		if ls.trusted.Sub(now) < b.length/3 {
			starving = append(starving, ls)
		}
		ls.crowded = true
		d.startSingle(ls, b.promise)
	}
	d.mu.Unlock()
	if len(starving) > 0 {
		d.failed(b, starving, store.ErrRowLocked)
	}
}

// startSingle renews a lease by a statement of its own. It returns false if one is in flight
// for it, or too many are. The caller holds mu.
func (d *watchdog) startSingle(ls *lease, p promise) bool {
	if ls.single || d.single == maxSingle || d.ctx.Err() != nil {
		return false
	}
	ls.single = true
	ls.mayBeBound = ls.mayBeBound || p.session != nil
	d.single++
	b := batch{p, []*lease{ls}, time.Now()}
	d.done.Go(func() { d.renewSingle(b) })
	return true
}

// renewSingle renews the one lease of a batch by a statement that may wait for the row.
func (d *watchdog) renewSingle(b batch) {
	ls := b.leases[0]
	mine, sent, err := d.repo.Extend(d.ctx, ls.claim, b.length, b.holds, b.session.number())
	d.mu.Lock()
	ls.single = false
	d.single--
	if ls.expired && err == nil && mine && d.ctx.Err() == nil {
		d.releaser.Add(ls.claim, d.span(ls), false, time.Now()) // lost meanwhile, so nobody uses the row
	}
	d.mu.Unlock()
	switch {
	case err == nil && mine:
		d.extendedAll(b, b.leases, sent)
	case err == nil:
		d.lost(b, b.leases) // or the statement was killed, and its reply is wrong
	case !errors.Is(err, store.ErrRowLocked):
		d.failed(b, b.leases, err)
	}
}

// renewed counts and reports leases that were renewed or checked, and logs those that had
// failed before.
func (d *watchdog) renewed(b batch, served []*lease) {
	recovered, first := 0, ""
	d.mu.Lock()
	for _, ls := range served {
		if ls.failing {
			ls.failing = false
			if recovered++; recovered == 1 {
				first = ls.claim.Name
			}
		}
	}
	d.mu.Unlock()
	if recovered > 0 {
		d.log.Info("mysqllock: renewals succeed again", "locks", recovered, "first", first)
	}
	if b.length > 0 {
		d.renewals.Add(int64(len(served)))
		d.observers.renewal(RenewalInfo{Locks: len(b.leases), Renewed: len(served)})
	}
}
