package mysqllock

import (
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A lease is the time for which a row belongs to one hold, as far as this process may
// trust it.
type lease struct {
	claim  store.Claim
	onLoss func() // called once, without locks, when the lease is lost

	promised     time.Time     // the row's expiry, at the earliest
	trusted      time.Time     // the end of trust: promised less the margin
	renewed      time.Time     // when the last successful renewal was sent
	seen         time.Time     // when the last statement was sent that found the row to be ours
	extraMargin  time.Duration // of a hold that adopted a longer lease than it requested; else 0
	requested    request       // of the open handles
	unsure       time.Duration // the longest lease that a statement without a reply may have written
	holds        int           // open handles
	rowHolds     int           // the row's number of handles; 0 if unknown
	due          time.Time     // the next renewal or check; zero if there is none
	queued       bool          // in the watchdog's queue
	sending      int           // batches in flight that include it
	single       bool          // a renewal of it alone is in flight
	crowded      bool          // the last batch skipped the row, which was locked
	ended        bool          // ended or lost: never trusted again
	failing      bool          // the last renewal or check failed
	ownerChanged bool          // lost, because the row has another owner
	expired      bool          // lost, because its time ran out
	timer        *time.Timer
}

// A request is what the handles of a hold ask of its lease: to be renewed until Unlock, or
// to last until a time.
type request struct {
	auto  bool
	until time.Time
}

// margin is the safety margin of a lease: for clocks that run at different rates (NTP slews
// by 500 ppm; a thousandth is twice that), and for the time that it takes to report a loss.
func margin(length time.Duration) time.Duration {
	return max(min(length/10, time.Second), length/1000)
}

// trustedUntil is the end of trust in a lease that the database granted after sent.
func trustedUntil(sent time.Time, length time.Duration) time.Time {
	return sent.Add(length - margin(length))
}

// start begins to keep a lease that was granted to a request sent at sent.
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

// request changes what the handles ask of the lease. It sends nothing: a longer lease is
// written by a renewal, in time.
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
		// No later than if AutoRenew had been requested from the start.
		soon = now.Add(min(ls.trusted.Sub(now), d.length) / 3)
	}
	if ls.due.IsZero() || soon.Before(ls.due) {
		ls.due = soon
		d.wake(soon)
	}
}

// needsRenewal reports whether the row must be renewed. The caller holds the watchdog's mu.
func (ls *lease) needsRenewal() bool {
	return ls.requested.auto || ls.requested.until.After(ls.promised)
}

// pass hands a lease over to the next holder in the process. It returns false, and changes
// nothing, if the row does not cover what that one requests.
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
		return false // others would wait for too long if this process died
	}
	ls.requested, ls.holds, ls.onLoss, ls.extraMargin = w, 1, onLoss, 0
	if !w.auto {
		ls.extraMargin = margin(length)
		ls.timer.Reset(time.Until(ls.end()))
		d.plan(ls, now, length)
	}
	return true
}

// stop ends a lease. It returns how long the row may still belong to it.
func (d *watchdog) stop(ls *lease) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(ls)
	return d.span(ls)
}

// span returns how long the row may still belong to the lease. The caller holds mu.
func (d *watchdog) span(ls *lease) time.Duration {
	return max(d.length, ls.unsure, time.Until(ls.promised), time.Until(ls.requested.until))
}

// extending records that a statement, whose reply may be lost, is about to write a lease of
// length. It returns false if the lease has ended.
func (d *watchdog) extending(ls *lease, length time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	ls.unsure, ls.rowHolds = max(ls.unsure, length), 0
	return !ls.ended
}

// extended records a successful renewal that was sent at sent.
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

// showed records that a statement sent at sent found the row to be ours. The caller holds
// the watchdog's mu.
func (ls *lease) showed(sent time.Time) {
	if sent.After(ls.seen) {
		ls.seen = sent
	}
}

// confirmed reports whether the row was found to be ours within handoffTrust.
func (d *watchdog) confirmed(ls *lease) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Since(ls.seen) < handoffTrust
}

// confirm records that a look sent at sent found the row to be ours.
func (d *watchdog) confirm(ls *lease, sent time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ls.showed(sent)
}

// trust moves the end of trust to margin before the row's expiry, but only forward, and not
// once it has passed: a reported loss is final. The caller holds mu.
func (d *watchdog) trust(ls *lease, promised time.Time, margin time.Duration) {
	until := promised.Add(-margin)
	if !ls.ended && time.Now().Before(ls.end()) && until.After(ls.trusted) {
		ls.promised, ls.trusted = promised, until
		ls.timer.Reset(time.Until(ls.end()))
	}
}

// end is the end of trust, or of what the handles requested. The caller holds the
// watchdog's mu.
func (ls *lease) end() time.Time {
	if ls.extraMargin > 0 && !ls.requested.auto {
		if until := ls.requested.until.Add(-ls.extraMargin); until.Before(ls.trusted) {
			return until
		}
	}
	return ls.trusted
}

// alive reports whether the lease can be trusted at this very moment. It compares the clock
// itself, because the timer may be late. A reported loss is final.
func (d *watchdog) alive(ls *lease) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !ls.ended && !time.Now().Before(ls.end()) {
		d.expire(ls)
	}
	return !ls.ended
}

// onTimer is called by the timer of the loss.
func (d *watchdog) onTimer(ls *lease) {
	d.mu.Lock()
	if left := time.Until(ls.end()); !ls.ended && left > 0 {
		ls.timer.Reset(left) // the lease was extended as the timer fired
		d.mu.Unlock()
		return
	}
	if !ls.ended {
		d.expire(ls)
	}
	d.mu.Unlock()
	ls.onLoss()
}

// expire ends a lease whose time has run out. The row is released if it may belong to the
// lease for longer than requested, or if a renewal or an extension in flight may still
// extend it. That happens no earlier than requested, because the holders do not know of
// the loss yet. The caller holds mu.
func (d *watchdog) expire(ls *lease) {
	d.remove(ls)
	ls.expired = true
	switch {
	case ls.end().Before(ls.trusted):
		d.releaser.Add(ls.claim, d.span(ls), false, ls.requested.until)
	case ls.needsRenewal() || ls.unsure > 0:
		d.releaser.Add(ls.claim, d.span(ls), false, ls.promised)
	}
}

// ownerChanged ends the lease of a claim that does not own its row any more, and reports
// the loss.
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
	lostTaken      = "taken"       // the row has another owner, or is missing
	lostNotRenewed = "not renewed" // in time: the database or this process was too slow, or was stopped
	lostEnded      = "lease ended" // of a fixed lease
)

// reason returns why a lease was lost.
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

// remove ends a lease. The caller holds mu.
func (d *watchdog) remove(ls *lease) {
	ls.ended = true
	ls.timer.Stop()
	delete(d.leases, ls)
}
