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
)

// watchdog keeps the leases of this process: it renews those that shall go on,
// looks after those that shall not, and tells each one's loss by a timer of its
// own that needs no answer from the database.
type watchdog struct {
	repo      leaseStore
	length    time.Duration // what a renewal promises
	releaser  *releaser
	log       *slog.Logger
	observers observers
	renewals  atomic.Int64
	failures  atomic.Int64

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex // guards the following, and the fields of every lease
	leases  map[*lease]struct{}
	next    time.Time // when run begins; zero: not planned
	timer   *time.Timer
	queue   []batch   // due and not sent yet, the most urgent first
	sending int       // batches under way
	sent    time.Time // when the last of them was sent
	single  int       // renewals of one lease under way
}

const (
	// maxSending bounds the batches under way. A further one is sent only if those
	// have had no answer for stalled: healthy, one after the other on the connection
	// that is kept for them, they take nothing from the pool.
	maxSending = 4
	stalled    = 100 * time.Millisecond
	// maxSingle bounds the statements that renew, or release, one row each and wait
	// for it.
	maxSingle = 4
)

// A lease is one term's promise by the row, as this process may trust it.
type lease struct {
	claim  store.Claim
	onLoss func() // called once, without locks, when the timer or the row tells the loss

	promised     time.Time     // the row is ours at least until then, unless it is taken away
	trusted      time.Time     // the end of trust in that: promised less the margin
	renewed      time.Time     // when the last statement was sent that promised
	seen         time.Time     // when the last statement was sent that showed the row as ours
	extraMargin  time.Duration // the margin of a holder to whom more was passed on than he asks; else zero
	requested    request       // what the handles ask
	unsure       time.Duration // the longest lease that the row may have been promised without our knowing
	holds        int           // open handles
	rowHolds     int           // what the row says of them; 0: not known
	due          time.Time     // the next renewal or look; zero: none
	queued       bool          // in the watchdog's queue
	sending      int           // batches under way that have it
	single       bool          // a renewal of it alone is under way
	crowded      bool          // a batch passed over the row, and none has renewed it since
	ended        bool          // ended, or lost: never to be trusted again
	failing      bool          // the last renewal or look failed
	ownerChanged bool          // lost, because the row was taken away
	expired      bool          // lost, because its time was over
	timer        *time.Timer
}

// want is what the handles of a term ask of its lease: for ever, or until.
type request struct {
	auto  bool
	until time.Time
}

func newWatchdog(repo leaseStore, length time.Duration, orphans *releaser, log *slog.Logger, observers observers) *watchdog {
	d := &watchdog{
		repo: repo, length: length, releaser: orphans, log: log, observers: observers,
		leases: map[*lease]struct{}{},
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// close ends the watchdog, and waits for what it does.
func (d *watchdog) close() {
	d.mu.Lock()
	d.cancel()
	if d.timer != nil {
		d.timer.Stop()
	}
	d.mu.Unlock()
	d.done.Wait()
}

// margin is what is taken off a lease before it is trusted, for clocks that run
// at different rates (NTP slews by 500 ppm: a thousandth is twice that) and for
// the time that the word of a loss takes to arrive.
func margin(length time.Duration) time.Duration {
	return max(min(length/10, time.Second), length/1000)
}

// trustedUntil is the end of trust in a lease of that length which the database
// granted to a request sent at sent, that is, not before.
func trustedUntil(sent time.Time, length time.Duration) time.Time {
	return sent.Add(length - margin(length))
}

// start begins to keep a lease of the given length that was granted by a request
// sent at sent.
func (d *watchdog) start(c store.Claim, sent time.Time, length time.Duration, w request, onLoss func()) *lease {
	ls := &lease{
		claim: c, onLoss: onLoss, requested: w, holds: 1, rowHolds: 1,
		promised: sent.Add(length), trusted: trustedUntil(sent, length), seen: sent,
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leases[ls] = struct{}{}
	ls.timer = time.AfterFunc(time.Until(ls.trusted), func() { d.onTimer(ls) })
	d.plan(ls, sent, length)
	return ls
}

// plan sets when ls is due, given that the row was promised for length at sent.
// The caller holds mu.
func (d *watchdog) plan(ls *lease, sent time.Time, length time.Duration) {
	switch {
	case ls.ended:
		return
	case ls.requested.auto:
		ls.due = sent.Add(min(length, d.length) / 3)
	case ls.needsRenewal():
		ls.due = sent.Add(length / 3)
	default:
		// Nothing to renew; but a lock that was taken away shall be told.
		ls.due = sent.Add(max(length/3, time.Second))
	}
	if ls.due.After(ls.end()) {
		ls.due = time.Time{}
		return
	}
	d.wake(ls.due)
}

// wake makes run begin at that time at the latest. The caller holds mu.
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

// ask changes what the handles ask of the lease. It sends nothing: if the row
// has to be promised for longer, a renewal will do that in time.
func (d *watchdog) request(ls *lease, w request, holds int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ls.holds = holds
	if ls.requested == w {
		return
	}
	ls.requested = w
	if ls.extraMargin > 0 && !ls.ended {
		ls.timer.Reset(time.Until(ls.end()))
	}
	if ls.ended || !ls.needsRenewal() {
		return
	}
	now := time.Now()
	soon := now.Add(ls.trusted.Sub(now) / 3)
	if w.auto {
		// At the latest when it would have been renewed had it been so from the start.
		soon = now.Add(min(ls.trusted.Sub(now), d.length) / 3)
	}
	if ls.due.IsZero() || soon.Before(ls.due) {
		ls.due = soon
		d.wake(soon)
	}
}

// wanting tells whether the row has to be promised for longer. The caller holds
// the watchdog's mu.
func (ls *lease) needsRenewal() bool {
	return ls.requested.auto || ls.requested.until.After(ls.promised)
}

// pass leaves a lease to the next holder in the process. It returns false if the
// row does not promise what that one asks; then the lease is what it was, and
// stop ends it.
func (d *watchdog) pass(ls *lease, w request, length time.Duration, onLoss func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	switch {
	case ls.ended:
		return false
	case w.auto && (!ls.requested.auto || ls.trusted.Sub(now) < d.length/3):
		return false
	case !w.auto && (ls.promised.Before(w.until) || ls.trusted.Before(w.until.Add(-margin(length)))):
		return false
	case ls.promised.Sub(now) > max(d.length, length):
		return false // for so long others would wait if this process died
	}
	ls.requested, ls.holds, ls.onLoss, ls.extraMargin = w, 1, onLoss, 0
	if !w.auto {
		ls.extraMargin = margin(length)
		ls.timer.Reset(time.Until(ls.end()))
		d.plan(ls, now, length)
	}
	return true
}

// end is the end of trust, also by what the handles ask. The caller holds the
// watchdog's mu.
func (ls *lease) end() time.Time {
	if ls.extraMargin > 0 && !ls.requested.auto {
		if asked := ls.requested.until.Add(-ls.extraMargin); asked.Before(ls.trusted) {
			return asked
		}
	}
	return ls.trusted
}

// taken ends the lease of a claim whose row was taken away, and tells whoever
// holds it now.
func (d *watchdog) ownerChanged(c store.Claim) {
	d.mu.Lock()
	var lost *lease
	for ls := range d.leases {
		if ls.claim == c {
			lost = ls
			ls.ownerChanged = true
			d.remove(ls)
		}
	}
	d.mu.Unlock()
	if lost != nil {
		lost.onLoss()
	}
}

// The reasons of a loss.
const (
	lostTaken      = "taken"       // the row is somebody else's, or gone
	lostNotRenewed = "not renewed" // not in time: the database, or this process, was too slow or stood still
	lostEnded      = "lease ended" // a fixed lease did
)

// reason tells why a lease was lost.
func (d *watchdog) reason(ls *lease) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case ls.ownerChanged:
		return lostTaken
	case ls.requested.auto:
		return lostNotRenewed
	default:
		return lostEnded
	}
}

// stop ends the keeping of a lease. It returns for how long the row may yet be
// promised.
func (d *watchdog) stop(ls *lease) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(ls)
	return d.span(ls)
}

// span is for how long the row of the lease may yet be promised. The caller
// holds mu.
func (d *watchdog) span(ls *lease) time.Duration {
	return max(d.length, ls.unsure, time.Until(ls.promised), time.Until(ls.requested.until))
}

// extending notes that the row is about to be promised for length by a statement
// whose answer may never come. It returns false if the lease is over.
func (d *watchdog) extending(ls *lease, length time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	ls.unsure, ls.rowHolds = max(ls.unsure, length), 0
	return !ls.ended
}

// drop marks a lease as over. The caller holds mu.
func (d *watchdog) remove(ls *lease) {
	ls.ended = true
	ls.timer.Stop()
	delete(d.leases, ls)
}

// alive tells whether the lease can be trusted at this very moment, whether or
// not the timer of its loss has had its turn on the processor. Once it has said
// no, it never says yes again.
func (d *watchdog) alive(ls *lease) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !ls.ended && !time.Now().Before(ls.end()) {
		d.expire(ls)
	}
	return !ls.ended
}

// lapse ends a lease whose time is over. If the row promises more than was asked,
// or a renewal or an extension on its way can still prolong its promise to
// nobody's use, the row is freed, but not before the time that was asked: those
// who hold the lock have yet to be told. The caller holds mu.
func (d *watchdog) expire(ls *lease) {
	d.remove(ls)
	ls.expired = true
	switch {
	case ls.end().Before(ls.trusted):
		d.releaser.add(ls.claim, d.span(ls), false, ls.requested.until)
	case ls.needsRenewal() || ls.unsure > 0:
		d.releaser.add(ls.claim, d.span(ls), false, ls.promised)
	}
}

// expire is the timer of a loss.
func (d *watchdog) onTimer(ls *lease) {
	d.mu.Lock()
	if left := time.Until(ls.end()); !ls.ended && left > 0 {
		ls.timer.Reset(left) // the lease was prolonged as the timer went off
		d.mu.Unlock()
		return
	}
	if !ls.ended {
		d.expire(ls)
	}
	d.mu.Unlock()
	ls.onLoss()
}

// prolonged notes a success: the row was promised that at sent.
func (d *watchdog) extended(ls *lease, sent time.Time, p promise) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.holds > 0 {
		ls.rowHolds = p.holds
	}
	d.trust(ls, sent.Add(p.length), margin(p.length))
	d.plan(ls, sent, p.length)
	ls.showed(sent)
	if sent.After(ls.renewed) {
		ls.renewed = sent
	}
}

// showed notes that a statement sent at that time showed the row as ours. The
// caller holds the watchdog's mu.
func (ls *lease) showed(sent time.Time) {
	if sent.After(ls.seen) {
		ls.seen = sent
	}
}

// confirmed reports whether the row was ours so short a time ago that a handoff
// need not look at it.
func (d *watchdog) confirmed(ls *lease) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(ls.seen) < handoffTrust
}

// confirm notes that a look sent at that time showed the row as ours.
func (d *watchdog) confirm(ls *lease, sent time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ls.showed(sent)
}

// trust moves the end of trust to margin before the end of the row's promise,
// but only forward and not once it has passed: who may have been told of a loss
// is not told otherwise. The caller holds mu.
func (d *watchdog) trust(ls *lease, promised time.Time, margin time.Duration) {
	until := promised.Add(-margin)
	if !ls.ended && time.Now().Before(ls.end()) && until.After(ls.trusted) {
		ls.promised, ls.trusted = promised, until
		ls.timer.Reset(time.Until(ls.end()))
	}
}

// run sends what is due, and sets the timer for what will be.
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
		if !ls.queued && !ls.due.IsZero() && (first.IsZero() || ls.due.Before(first)) {
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

// send serves a batch on a goroutine of its own. The caller holds mu.
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
		ls.due = now.Add(bound + retry) // unless it is answered
		if b.holds > 0 {
			ls.rowHolds = 0 // until it is answered
		}
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

// bounds returns how long a statement may take, and the pause after one that
// failed: whatever the database does, there is time left to try again.
func (d *watchdog) bounds(p promise) (bound, retry time.Duration) {
	bound = min(d.length/4, 5*time.Second)
	if p.length > 0 {
		bound = min(bound, max(p.length/4, 100*time.Millisecond))
	}
	return bound, min(bound/2, time.Second)
}

// A batch is what one statement can serve: leases whose rows are to say the same.
type batch struct {
	promise
	leases []*lease
	began  time.Time
}

// A promise is what a renewal writes; length 0 stands for a mere look, holds 0
// for what the row says already.
type promise struct {
	length time.Duration
	holds  int
	longer bool // the rows are promised for longer: it changes nothing, but shows whether they were taken away
}

// dueBatches collects what is due, and with it what will be due within half the
// time between renewals: locks that were taken at different times come to be
// renewed together. The caller holds mu.
func (d *watchdog) dueBatches() []batch {
	now := time.Now()
	soon := now.Add(d.length / 6)
	due := map[promise][]*lease{}
	urgent := false
	for ls := range d.leases {
		if ls.due.IsZero() || ls.due.After(soon) || ls.queued || ls.sending > 0 && ls.due.After(now) {
			continue
		}
		urgent = urgent || !ls.due.After(now)
		var key promise
		if ls.holds != ls.rowHolds {
			key.holds = ls.holds
		}
		switch {
		case ls.requested.auto:
			key.length, key.longer = d.length, ls.promised.Sub(now) >= d.length
		case ls.needsRenewal():
			// In whole milliseconds, upwards, so that equal wishes meet.
			key.length = max(ls.requested.until.Sub(now), time.Millisecond).Truncate(time.Millisecond) + time.Millisecond
		default:
			key.holds = 0
		}
		if ls.crowded && key.length > 0 && !ls.due.After(now) && d.startSingle(ls, key) {
			bound, retry := d.bounds(key)
			ls.due = now.Add(bound + retry) // in a batch, unless it is answered
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
		// Who is nearest to its loss goes first.
		slices.SortFunc(leases, func(a, b *lease) int { return a.trusted.Compare(b.trusted) })
		for part := range slices.Chunk(leases, store.BatchSize) {
			batches = append(batches, batch{promise: key, leases: part})
		}
	}
	return batches
}

// serve sends one batch and draws its conclusions. What failed, or was passed
// over because somebody has the row locked, is tried again soon.
func (d *watchdog) serve(b batch) {
	claims := claimsOf(b.leases)
	bound, _ := d.bounds(b.promise)
	count := -1
	var sent time.Time
	if b.length > 0 {
		ctx, cancel := store.WithRetryLimit(d.ctx, bound)
		var err error
		count, sent, err = d.repo.Renew(ctx, claims, b.length, b.holds)
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
	var gone, seen, renewed, longer, passedOver []*lease
	d.mu.Lock()
	for _, ls := range b.leases {
		r, ok := rows[ls.claim.Name]
		switch {
		case ls.ended:
		case !ok || r.Owner != ls.claim.Owner:
			gone = append(gone, ls)
		case b.length == 0:
			ls.showed(looked)
			left := min(r.Remaining, ls.promised.Sub(looked))
			if ls.extraMargin > 0 {
				left = min(left, ls.end().Sub(looked))
			}
			d.plan(ls, looked, left)
			seen = append(seen, ls)
		default:
			ls.showed(looked)
			switch {
			case b.longer && !ls.promised.Before(sent.Add(b.length)):
				d.plan(ls, sent, b.length)
				seen = append(seen, ls)
			case r.Remaining > b.length:
				longer = append(longer, ls) // which the statement leaves unchanged
			case r.Remaining >= b.length-time.Since(sent)-margin(b.length):
				renewed = append(renewed, ls)
			default:
				passedOver = append(passedOver, ls)
			}
		}
	}
	d.mu.Unlock()
	if len(gone) > 0 {
		d.lost(b, gone)
	}
	if len(seen) > 0 {
		d.renewed(b, seen)
	}
	switch {
	case b.length == 0 || b.longer && len(seen) > 0:
	case len(renewed)+len(longer) == count:
		// Every row that the statement renewed is among them, so they are those.
		d.uncrowded(renewed)
		d.extendedAll(b, append(renewed, longer...), sent)
	default:
		// What a look shows may be rolled back, or be the effect of another
		// statement: only the answer of a write extends trust.
		passedOver = append(passedOver, longer...)
		if len(renewed) > 0 {
			passedOver = append(passedOver, d.again(b, renewed)...)
		}
	}
	d.passedOver(b, passedOver)
}

func claimsOf(leases []*lease) []store.Claim {
	claims := make([]store.Claim, len(leases))
	for i, ls := range leases {
		claims[i] = ls.claim
	}
	return claims
}

// prolongedAll notes the success of a batch for some of its leases.
func (d *watchdog) extendedAll(b batch, leases []*lease, sent time.Time) {
	for _, ls := range leases {
		d.extended(ls, sent, b.promise)
	}
	d.renewed(b, leases)
}

// uncrowded notes that a batch has renewed leases. The next time, it need not be
// by statements of their own.
func (d *watchdog) uncrowded(leases []*lease) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, ls := range leases {
		ls.crowded = false
	}
}

// again renews leases a second time. It returns those of which it is not known
// that they were.
func (d *watchdog) again(b batch, leases []*lease) []*lease {
	bound, _ := d.bounds(b.promise)
	ctx, cancel := store.WithRetryLimit(d.ctx, bound)
	defer cancel()
	count, sent, err := d.repo.Renew(ctx, claimsOf(leases), b.length, b.holds)
	if err != nil || count < len(leases) {
		return leases
	}
	d.extendedAll(b, leases, sent)
	return nil
}

// failed notes that the statement for some leases of a batch failed, unless they
// were renewed by another meanwhile.
func (d *watchdog) failed(b batch, leases []*lease, err error) {
	if d.ctx.Err() != nil {
		return
	}
	_, retry := d.bounds(b.promise)
	level := slog.LevelDebug // said before
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

// lost ends the leases whose rows are not theirs any more, by what was committed.
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

// passedOver has leases renewed one by one: a batch passes over rows that somebody
// has locked, which in a crowd may be always. What gets no statement of its own
// is in a batch again soon. A lease with less than a third of its time left is
// reported.
func (d *watchdog) passedOver(b batch, leases []*lease) {
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

// startSingle has a lease renewed by a statement of its own, and returns false if
// too many are, or this one is already. The caller holds mu.
func (d *watchdog) startSingle(ls *lease, p promise) bool {
	if ls.single || d.single == maxSingle || d.ctx.Err() != nil {
		return false
	}
	ls.single = true
	d.single++
	b := batch{p, []*lease{ls}, time.Now()}
	d.done.Go(func() { d.renewSingle(b) })
	return true
}

// renewSingle renews the one lease of a batch by a statement that waits for the
// row.
func (d *watchdog) renewSingle(b batch) {
	ls := b.leases[0]
	mine, sent, err := d.repo.Extend(d.ctx, ls.claim, b.length, b.holds)
	d.mu.Lock()
	ls.single = false
	d.single--
	if ls.expired && err == nil && mine && d.ctx.Err() == nil {
		d.releaser.add(ls.claim, b.length, false, time.Now()) // the lock was lost meanwhile: nobody holds the row
	}
	d.mu.Unlock()
	switch {
	case err == nil && mine:
		d.extendedAll(b, b.leases, sent)
	case err == nil:
		d.lost(b, b.leases) // unless the statement was killed, and its answer is wrong
	case !errors.Is(err, store.ErrRowLocked):
		d.failed(b, b.leases, err)
	}
}

// renewed counts the leases of a batch that were served, and tells of them, and of
// those that were not the last time.
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
