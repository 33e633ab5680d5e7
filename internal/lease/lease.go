package lease

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A Lease is the trust of this process that a row belongs to one of its holds. It lasts until the
// row's own lease expires, or the session to which the row is bound, whichever is later.
type Lease struct {
	Claim  store.Claim
	holder Holder // whose LeaseLost is called once, without mutexes held

	live struct { // read by Live without a mutex; written by publish
		until   atomic.Int64 // an instant; math.MinInt64 once the lease has ended
		session atomic.Pointer[session]
	}

	// The watchdog's mu protects following fields.
	session     *session  // the live session to which the row is bound, or nil
	mayBeBound  bool      // a statement may have bound the row, which then does not expire by itself
	boundAt     time.Time // when the reply to that statement arrived
	bindingLost bool      // the row is no longer bound, and must be bound again
	short       bool      // the row still has the short lease of a grant by a release, and must soon be extended

	promised     time.Time     // the earliest expiry of the row's own lease
	trusted      time.Time     // the end of trust in the row's own lease: promised, less the margin
	renewed      time.Time     // when the last successful renewal was sent
	seen         time.Time     // when the last statement that found the row owned by this hold was sent
	adopted      bool          // handed over to a hold that requests a fixed lease, which may be shorter
	requested    Request       // by the open handles
	maybeWritten time.Duration // the longest lease that a statement without a reply may have written
	holds        int           // open handles
	rowHolds     int           // the number of handles in the row; 0 if unknown
	due          time.Time     // when the next renewal or check is due; zero if there is none
	queued       bool          // in the watchdog's queue
	sending      int           // batches in flight that include this lease
	single       bool          // a renewal of only this lease is in flight
	ended        bool          // stopped or lost: never trusted again
	failing      bool          // the last renewal or check failed
	ownerChanged bool          // lost because the row has another owner
	expired      bool          // lost because its time ran out
	timer        *time.Timer   // fires at the end of trust
}

// A Holder has a lease, and must end its hold when the lease is lost.
type Holder interface{ LeaseLost() }

// A Request combines what the handles of a hold request: a lease that is renewed until Unlock, one
// that lasts until a given time, or both.
type Request struct {
	Auto   bool
	Until  time.Time
	Margin time.Duration // how long before Until the hold is lost, even if the row's lease lasts longer
}

// Margin returns the safety margin of a lease. It covers clocks that run at different rates
// (NTP slews by up to 500 ppm; a thousandth is twice that) and the time to report a loss.
func Margin(length time.Duration) time.Duration {
	return max(min(length/10, time.Second), length/1000)
}

// TrustedUntil returns the end of trust in a lease that the database granted after sent.
func TrustedUntil(sent time.Time, length time.Duration) time.Time {
	return sent.Add(length - Margin(length))
}

// needsRenewal reports whether the row's own lease must be renewed. The caller holds the watchdog's
// mu.
func (ls *Lease) needsRenewal() bool {
	return ls.requested.Auto && ls.session == nil || ls.requested.Until.After(ls.promised)
}

// unbound reports whether the row of a lease with AutoRenew must still be bound to a session. The
// caller holds the watchdog's mu.
func (ls *Lease) unbound() bool { return ls.requested.Auto && (ls.session == nil || ls.bindingLost) }

// length returns the length of the row's lease: the usual one, or that of a grant by a release. The
// caller holds the watchdog's mu.
func (ls *Lease) length(usual time.Duration) time.Duration {
	if ls.short {
		return min(usual, store.GrantLease)
	}
	return usual
}

// markSeen records that a statement sent at sent found the row owned by this hold. The
// caller holds the watchdog's mu.
func (ls *Lease) markSeen(sent time.Time) {
	if sent.After(ls.seen) {
		ls.seen = sent
	}
}

// end returns the end of trust, or the end of the requested time, less its margin, if the row lasts
// longer than that. The caller holds the watchdog's mu.
func (ls *Lease) end() time.Time {
	end := ls.ownEnd()
	if ls.session != nil {
		kept := ls.session.trusted
		if !ls.requested.Auto {
			kept = earlier(kept, ls.requested.end())
		}
		end = later(end, kept)
	}
	return end
}

// ownEnd is end for the row's own lease, without a session.
func (ls *Lease) ownEnd() time.Time {
	if ls.adopted && !ls.requested.Auto {
		return earlier(ls.trusted, ls.requested.end())
	}
	return ls.trusted
}

// end returns the end of the fixed lease, less its margin.
func (r Request) end() time.Time { return r.Until.Add(-r.Margin) }

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

// publish makes a change visible to Live and Remaining. The caller holds the watchdog's mu.
func (ls *Lease) publish() {
	switch {
	case ls.ended:
		ls.live.until.Store(math.MinInt64)
		ls.live.session.Store(nil)
	case ls.requested.Auto:
		ls.live.until.Store(Instant(ls.trusted))
		ls.live.session.Store(ls.session)
	default:
		ls.live.until.Store(Instant(ls.end()))
		ls.live.session.Store(nil)
	}
}

// Live reports whether the lease can be trusted now, as of the last publish.
func (ls *Lease) Live() bool {
	at := Now()
	if at < ls.live.until.Load() {
		return true
	}
	s := ls.live.session.Load()
	return s != nil && at < s.until.Load()
}

// Remaining returns how long the lease can be trusted without another renewal, as of the last
// publish.
func (ls *Lease) Remaining() time.Duration {
	end := ls.live.until.Load()
	if s := ls.live.session.Load(); s != nil {
		end = max(end, s.until.Load())
	}
	if at := Now(); at < end {
		return time.Duration(end - at)
	}
	return 0
}

// Instant returns a time of the monotonic clock as a number, so that it can be stored atomically.
func Instant(t time.Time) int64 { return int64(t.Sub(epoch)) }

// Now returns the current Instant.
func Now() int64 { return int64(time.Since(epoch)) }

var epoch = time.Now()
