package lease

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A lease is the time for which a row belongs to one hold, as far as this process may
// trust it: its own time, which a renewal of the row prolongs, or that of the session to
// which the row is bound.
type Lease struct {
	Claim  store.Claim
	onLoss func() // called once, without locks, when the lease is lost

	live struct { // what Live reads without a mutex
		until   atomic.Int64 // an instant; the least once the lease has ended
		session atomic.Pointer[session]
	}

	// The watchdog's mu protects following fields.
	session     *session  // to which the row is bound; nil if to none that is alive
	mayBeBound  bool      // a statement may have bound the row: it may not expire by itself
	boundAt     time.Time // when the reply to that statement arrived
	bindingLost bool      // the session was found not to keep the row: it must be bound again

	promised     time.Time     // the expiry of the row's own lease, at the earliest
	trusted      time.Time     // the end of trust in it: promised less the margin
	renewed      time.Time     // when the last successful renewal was sent
	seen         time.Time     // when the last statement was sent that found the row to be ours
	extraMargin  time.Duration // of a hold that adopted a longer lease than it requested; else 0
	requested    Request       // of the open handles
	maybeWritten time.Duration // the longest lease that a statement without a reply may have written
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
type Request struct {
	Auto  bool
	Until time.Time
}

// margin is the safety margin of a lease: for clocks that run at different rates (NTP slews
// by 500 ppm; a thousandth is twice that), and for the time that it takes to report a loss.
func Margin(length time.Duration) time.Duration {
	return max(min(length/10, time.Second), length/1000)
}

// trustedUntil is the end of trust in a lease that the database granted after sent.
func TrustedUntil(sent time.Time, length time.Duration) time.Time {
	return sent.Add(length - Margin(length))
}

// needsRenewal reports whether the row must be renewed. The caller holds the watchdog's mu.
func (ls *Lease) needsRenewal() bool {
	return ls.requested.Auto && ls.session == nil || ls.requested.Until.After(ls.promised)
}

// unbound reports whether a lease that must be kept is not bound to a session. The caller
// holds the watchdog's mu.
func (ls *Lease) unbound() bool { return ls.requested.Auto && (ls.session == nil || ls.bindingLost) }

// showed records that a statement sent at sent found the row to be ours. The caller holds
// the watchdog's mu.
func (ls *Lease) markSeen(sent time.Time) {
	if sent.After(ls.seen) {
		ls.seen = sent
	}
}

// end is the end of trust, or of what the handles requested. The caller holds the
// watchdog's mu.
func (ls *Lease) end() time.Time {
	end := ls.ownEnd()
	if ls.session != nil {
		kept := ls.session.trusted
		if !ls.requested.Auto {
			kept = earlier(kept, ls.requested.Until.Add(-max(ls.extraMargin, Margin(ls.session.promised.Sub(ls.session.renewed)))))
		}
		if kept.After(end) {
			return kept
		}
	}
	return end
}

// ownEnd is end without a session.
func (ls *Lease) ownEnd() time.Time {
	if ls.extraMargin > 0 && !ls.requested.Auto {
		return earlier(ls.trusted, ls.requested.Until.Add(-ls.extraMargin))
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

// publish makes a change visible to Live. The caller holds the watchdog's mu.
func (ls *Lease) publish() {
	switch {
	case ls.ended:
		ls.live.until.Store(math.MinInt64)
		ls.live.session.Store(nil)
	case ls.requested.Auto:
		ls.live.until.Store(instant(ls.trusted))
		ls.live.session.Store(ls.session)
	default:
		ls.live.until.Store(instant(ls.end()))
		ls.live.session.Store(nil)
	}
}

// Live reports whether the lease can be trusted at this very moment, unless it is so only
// by a change that was not published.
func (ls *Lease) Live() bool {
	at := now()
	if at < ls.live.until.Load() {
		return true
	}
	s := ls.live.session.Load()
	return s != nil && at < s.until.Load()
}

// An instant is a time by the monotonic clock, which can be read and written atomically.
func instant(t time.Time) int64 { return int64(t.Sub(epoch)) }

func now() int64 { return int64(time.Since(epoch)) }

var epoch = time.Now()
