package mysqllock

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A lease is the time for which a row belongs to one hold, as far as this process may
// trust it: its own time, which a renewal of the row prolongs, or that of the session to
// which the row is bound.
type lease struct {
	claim  store.Claim
	onLoss func() // called once, without locks, when the lease is lost

	live struct { // what isLive reads without a mutex
		until   atomic.Int64 // an instant; the least once the lease has ended
		session atomic.Pointer[session]
	}

	// The watchdog's mu protects following fields.
	session    *session // to which the row is bound; nil if to none that is alive
	mayBeBound bool     // a statement may have bound the row: it may not expire by itself

	promised     time.Time     // the expiry of the row's own lease, at the earliest
	trusted      time.Time     // the end of trust in it: promised less the margin
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
	ls.publish()
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
	if ls.ended {
		return
	}
	ls.publish()
	if ls.extraMargin > 0 || ls.session != nil && !w.auto {
		ls.timer.Reset(time.Until(ls.end()))
	}
	if !ls.needsRenewal() {
		return
	}
	now := time.Now()
	left := ls.end().Sub(now)
	if w.auto {
		left = min(left, d.length) // no later than if AutoRenew had been requested from the start
	}
	soon := now.Add(left / 3)
	if ls.due.IsZero() || soon.Before(ls.due) {
		ls.due = soon
		d.wake(soon)
	}
}

// needsRenewal reports whether the row must be renewed. The caller holds the watchdog's mu.
func (ls *lease) needsRenewal() bool {
	return ls.requested.auto && ls.session == nil || ls.requested.until.After(ls.promised)
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
	case w.auto && (!ls.requested.auto || ls.end().Sub(now) < d.length/3):
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
	ls.publish()
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
	if ls.mayBeBound {
		return untilReleased
	}
	return max(d.length, ls.unsure, time.Until(ls.promised), time.Until(ls.requested.until))
}

// untilReleased is the span of a row that a session may keep.
const untilReleased time.Duration = math.MaxInt64

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
	d.bind(ls, p.session)
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
		ls.publish()
	}
}

// end is the end of trust, or of what the handles requested. The caller holds the
// watchdog's mu.
func (ls *lease) end() time.Time {
	end := ls.ownEnd()
	if ls.session != nil {
		kept := ls.session.trusted
		if !ls.requested.auto {
			kept = earlier(kept, ls.requested.until.Add(-max(ls.extraMargin, margin(ls.session.promised.Sub(ls.session.renewed)))))
		}
		if kept.After(end) {
			return kept
		}
	}
	return end
}

// ownEnd is end without a session.
func (ls *lease) ownEnd() time.Time {
	if ls.extraMargin > 0 && !ls.requested.auto {
		return earlier(ls.trusted, ls.requested.until.Add(-ls.extraMargin))
	}
	return ls.trusted
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// publish makes a change visible to isLive. The caller holds the watchdog's mu.
func (ls *lease) publish() {
	switch {
	case ls.ended:
		ls.live.until.Store(math.MinInt64)
		ls.live.session.Store(nil)
	case ls.requested.auto:
		ls.live.until.Store(instant(ls.trusted))
		ls.live.session.Store(ls.session)
	default:
		ls.live.until.Store(instant(ls.end()))
		ls.live.session.Store(nil)
	}
}

// isLive reports whether the lease can be trusted at this very moment, unless it is so only
// by a change that was not published.
func (ls *lease) isLive() bool {
	at := now()
	if at < ls.live.until.Load() {
		return true
	}
	s := ls.live.session.Load()
	return s != nil && at < s.until.Load()
}

// alive reports whether the lease can be trusted at this very moment. It compares the clock
// itself, because the timer may be late. A reported loss is final.
func (d *watchdog) alive(ls *lease) bool {
	if ls.isLive() {
		return true
	}
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
		if ls.session == nil || !ls.requested.auto { // else the session has a timer
			ls.timer.Reset(left) // the lease was extended as the timer fired
		}
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
	from := ls.promised
	switch {
	case ls.end().Before(ls.trusted):
		from = ls.requested.until
	case ls.needsRenewal() || ls.unsure > 0 || ls.mayBeBound:
		if s := ls.session; s != nil && ls.requested.auto {
			from = later(from, s.promised)
		} else if s != nil {
			from = later(from, ls.requested.until)
		}
	default:
		from = time.Time{}
	}
	d.remove(ls)
	ls.expired = true
	if !from.IsZero() {
		d.releaser.Add(ls.claim, d.span(ls), false, from)
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
	if ls.ended {
		return
	}
	ls.ended = true
	if ls.session != nil {
		ls.session.bound--
		ls.session = nil
	}
	ls.publish()
	ls.timer.Stop()
	delete(d.leases, ls)
}
