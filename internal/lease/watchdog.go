// Package lease decides how long a lock may be trusted. It measures each lease by the monotonic
// clock, renews it, binds its row to the session of this process, and reports its loss before
// another owner can acquire the row.
package lease

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A Repository has the methods of package store that a Watchdog needs; their comments are there.
type Repository interface {
	Renew(ctx context.Context, cs []store.Claim, lease time.Duration, holds int, session store.SessionID) (renewed int, sent time.Time, err error)
	Extend(ctx context.Context, c store.Claim, lease time.Duration, holds int, session store.SessionID) (owned bool, sent time.Time, err error)
	Look(ctx context.Context, names []string) (rows map[string]store.Row, sent time.Time, err error)
	Owned(ctx context.Context, cs []store.Claim) ([]store.Claim, error)

	BeginSession(ctx context.Context, id store.SessionID, lease time.Duration) (sent time.Time, err error)
	RenewSession(ctx context.Context, id store.SessionID, lease time.Duration) (store.SessionRenewal, error)
	CountBound(ctx context.Context, id store.SessionID) (n int, err error)
	Bound(ctx context.Context, id store.SessionID) (claims []store.Claim, sent time.Time, err error)
	EndSession(ctx context.Context, id store.SessionID) error
}

// A Releaser releases rows that no hold uses, each from a given time on, and until the claim is known
// not to own the row.
type Releaser interface {
	Add(c store.Claim, lease time.Duration, mayBeGranted bool, from time.Time)
}

// Config configures a Watchdog.
type Config struct {
	Self     store.Process
	Length   time.Duration // of a renewed lease
	Releaser Releaser
	Log      *slog.Logger
	Reported func(locks, renewed int, err error) // called after each statement that renews, without mutexes held
}

// A Watchdog renews the leases of this process, or checks who owns their rows. Each lease has a
// timer that reports its loss without a reply from the database.
type Watchdog struct {
	Config
	repo     Repository
	group    *background.Group
	renewals atomic.Int64
	failures atomic.Int64

	mu      sync.Mutex // protects following fields, and those of every lease
	leases  map[*Lease]struct{}
	next    time.Time   // when timer calls run; zero if it is not scheduled
	timer   *time.Timer // calls run
	queue   []batch     // due, but not sent yet; the most urgent first
	sending int         // batches in flight
	sent    time.Time   // when the last of them was sent
	single  int         // renewals of one lease in flight

	gone map[store.Claim]time.Time // claims that lost their rows before they had a lease, and when that was known

	session     *session  // the live one, or nil
	sessionRow  time.Time // when the last statement that wrote the session row was sent
	lastSession store.SessionID
	beginning   bool      // a statement that begins a session is in flight
	beginAfter  time.Time // set after a failure: no session begins before this time
}

// New returns a Watchdog without leases. It must be closed.
func New(repo Repository, c Config) *Watchdog {
	d := &Watchdog{
		Config: c, repo: repo, group: background.NewGroup(), leases: map[*Lease]struct{}{}, gone: map[store.Claim]time.Time{}, lastSession: c.Self.FirstSession() - 1,
	}
	d.timer = time.AfterFunc(time.Hour, d.run)
	d.timer.Stop()
	return d
}

// Close ends the watchdog's goroutines and waits for them.
func (d *Watchdog) Close() {
	d.mu.Lock()
	d.group.Stop()
	d.timer.Stop()
	if d.session != nil {
		d.session.stop()
	}
	d.mu.Unlock()
	d.group.Wait()
}

// Start adds a lease that the database has granted for length to a request sent at sent.
func (d *Watchdog) Start(c store.Claim, sent time.Time, length time.Duration, r Request, holder Holder) *Lease {
	ls := &Lease{
		Claim: c, holder: holder, requested: r, holds: 1, rowHolds: 1,
		promised: sent.Add(length), trusted: TrustedUntil(sent, length), seen: sent, short: store.Granted(c.Owner),
	}
	ls.publish()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leases[ls] = struct{}{}
	ls.timer = time.AfterFunc(time.Until(ls.trusted), func() { d.onTimer(ls) })
	if at, gone := d.gone[c]; gone && sent.Before(at) { // a claim that was freed may be granted later
		ls.ownerChanged = true
		d.remove(ls)
		d.Releaser.Add(c, d.span(ls), false, time.Now()) // or was granted before that was known
		ls.timer.Reset(0)
		return ls
	}
	d.plan(ls, sent, length)
	return ls
}

// Change records what the open handles request now. It sends nothing; if they request a longer
// lease, a renewal writes it in time.
func (d *Watchdog) Change(ls *Lease, r Request, holds int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ls.holds = holds
	if ls.requested == r {
		return
	}
	ls.requested = r
	if ls.ended {
		return
	}
	ls.publish()
	if ls.adopted || ls.session != nil && !r.Auto {
		ls.timer.Reset(time.Until(ls.end()))
	}
	if !ls.needsRenewal() {
		return
	}
	now := time.Now()
	left := ls.end().Sub(now)
	if r.Auto {
		left = min(left, d.Length) // no later than if AutoRenew had been requested from the start
	}
	soon := now.Add(left / 3)
	if ls.due.IsZero() || soon.Before(ls.due) {
		ls.due = soon
		d.wake(soon)
	}
}

// Pass hands a lease over to the next holder in this process. It returns false, and changes nothing,
// if the row's lease does not cover what that holder requests.
func (d *Watchdog) Pass(ls *Lease, r Request, length time.Duration, holder Holder, now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case ls.ended:
		return false
	case r.Auto && (!ls.requested.Auto || ls.end().Sub(now) < ls.length(d.Length)/3):
		return false
	case !r.Auto && (ls.promised.Before(r.Until) || ls.trusted.Before(r.end())):
		return false
	case ls.promised.Sub(now) > max(d.Length, length):
		return false // other processes would wait too long if this one died
	}
	ls.requested, ls.holds, ls.holder, ls.adopted = r, 1, holder, !r.Auto
	if !r.Auto {
		ls.timer.Reset(time.Until(ls.end()))
		d.plan(ls, now, length)
	}
	ls.publish()
	return true
}

// Stop ends a lease. It returns how long the row may still be held by its claim.
func (d *Watchdog) Stop(ls *Lease) time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(ls)
	return d.span(ls)
}

// span returns how long the row may still be held by the claim of a lease. The caller holds mu.
func (d *Watchdog) span(ls *Lease) time.Duration {
	if ls.mayBeBound {
		return UntilReleased
	}
	return max(d.Length, ls.maybeWritten, time.Until(ls.promised), time.Until(ls.requested.Until))
}

// UntilReleased is the span of a row that may be bound to a session: such a row does not expire by
// itself.
const UntilReleased time.Duration = math.MaxInt64

// Extending must be called before a statement that writes a lease of the given length, whose reply
// may be lost. It returns false if the lease has ended.
func (d *Watchdog) Extending(ls *Lease, length time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	ls.maybeWritten, ls.rowHolds = max(ls.maybeWritten, length), 0
	return !ls.ended
}

// Extended records that a statement sent at sent has renewed the row for length.
func (d *Watchdog) Extended(ls *Lease, sent time.Time, length time.Duration) {
	d.extended(ls, sent, renewal{length: length})
}

func (d *Watchdog) extended(ls *Lease, sent time.Time, r renewal) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.holds > 0 {
		ls.rowHolds = r.holds
	}
	ls.trust(sent, r.length)
	d.bind(ls, r.session)
	d.plan(ls, sent, r.length)
	ls.markSeen(sent)
	if sent.After(ls.renewed) {
		ls.renewed = sent
	}
}

// Seen returns when the last statement that found the row owned by this hold was sent.
func (d *Watchdog) Seen(ls *Lease) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return ls.seen
}

// Confirm records that a statement sent at sent found the row owned by the lease's hold.
func (d *Watchdog) Confirm(ls *Lease, sent time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ls.markSeen(sent)
}

// trust moves the end of trust forward after a renewal sent at sent, but not if trust has ended,
// because a reported loss is final. The caller holds the watchdog's mu.
func (ls *Lease) trust(sent time.Time, length time.Duration) {
	until := TrustedUntil(sent, length)
	if !ls.ended && time.Now().Before(ls.end()) && until.After(ls.trusted) {
		ls.promised, ls.trusted, ls.short = sent.Add(length), until, false
		ls.timer.Reset(time.Until(ls.end()))
		ls.publish()
	}
}

// Alive reports whether the lease can be trusted now. It compares the clock itself, because
// the timer may be late. A reported loss is final.
func (d *Watchdog) Alive(ls *Lease) bool {
	if ls.Live() {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !ls.ended && !time.Now().Before(ls.end()) {
		d.expire(ls)
	}
	return !ls.ended
}

// onTimer is called when the timer of a lease fires.
func (d *Watchdog) onTimer(ls *Lease) {
	d.mu.Lock()
	if left := time.Until(ls.end()); !ls.ended && left > 0 {
		if ls.session == nil || !ls.requested.Auto { // else the session's timer reports the loss
			ls.timer.Reset(left) // the lease was extended as the timer fired
		}
		d.mu.Unlock()
		return
	}
	if !ls.ended {
		d.expire(ls)
	}
	d.mu.Unlock()
	ls.holder.LeaseLost()
}

// expire ends a lease whose time has run out. If the row may stay held by its claim, or a statement
// in flight may extend it, expire has the row released, but not before the time that was promised to
// the holders: they may not have noticed the loss yet. The caller holds mu.
func (d *Watchdog) expire(ls *Lease) {
	from := ls.promised
	switch {
	case ls.end().Before(ls.trusted):
		from = ls.requested.Until
	case ls.needsRenewal() || ls.maybeWritten > 0 || ls.mayBeBound:
		if s := ls.session; s != nil && ls.requested.Auto {
			from = later(from, s.promised())
		} else if s != nil {
			from = later(from, ls.requested.Until)
		}
	default:
		from = time.Time{}
	}
	d.remove(ls)
	ls.expired = true
	if !from.IsZero() {
		d.Releaser.Add(ls.Claim, d.span(ls), false, from)
	}
}

// OwnerChanged ends the lease of a claim that no longer owns its row, and reports the loss. If the reply
// that begins the lease is still on its way, the lease is lost from the start.
func (d *Watchdog) OwnerChanged(c store.Claim) {
	d.mu.Lock()
	var lost *Lease
	for ls := range d.leases {
		if ls.Claim == c {
			lost = ls
			ls.ownerChanged = true
			d.remove(ls)
		}
	}
	if lost == nil && store.ProcessOf(c.Owner) == d.Self {
		maps.DeleteFunc(d.gone, func(_ store.Claim, at time.Time) bool { return time.Since(at) > rememberGone })
		d.gone[c] = time.Now()
	}
	d.mu.Unlock()
	if lost != nil {
		lost.holder.LeaseLost()
	}
}

// rememberGone is longer than it takes a reply to begin a lease.
const rememberGone = time.Minute

// The reasons for a loss.
const (
	Taken          = "taken"       // the row has another owner, or is missing
	lostNotRenewed = "not renewed" // in time, because the database or this process was too slow, or stopped
	Ended          = "lease ended" // a fixed lease expired
)

// Reason returns why a lease was lost.
func (d *Watchdog) Reason(ls *Lease) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case ls.ownerChanged:
		return Taken
	case ls.requested.Auto:
		return lostNotRenewed
	default:
		return Ended
	}
}

// remove ends a lease. The caller holds mu.
func (d *Watchdog) remove(ls *Lease) {
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

// Renewals returns how many leases were renewed, and how many statements failed to renew leases, or
// skipped the locked row of a lease that was about to be lost.
func (d *Watchdog) Renewals() (renewed, failed int64) { return d.renewals.Load(), d.failures.Load() }
