package lease

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A session keeps the rows that are bound to it held: a statement that renews the session's row
// prolongs all their leases. A watchdog has at most one session, which begins when the first lease
// with AutoRenew is due for renewal. A session that has expired stays dead.
type session struct {
	id     store.SessionID
	length time.Duration // of the lease that each renewal writes
	until  atomic.Int64  // trusted as an Instant, read without a mutex; math.MinInt64 once the session is dead

	// The watchdog's mu protects following fields.
	renewed   time.Time   // when the last successful renewal was sent
	trusted   time.Time   // the end of trust, counted from renewed
	bound     int         // leases bound to it
	due       time.Time   // the next renewal
	loss      *time.Timer // fires at the end of trust
	next      *time.Timer // fires when a renewal is due
	renewing  bool        // a renewal is in flight
	renewals  int
	audits    int                      // how many of the next renewals check all rows, because one was freed by force
	unmatched map[store.Claim]struct{} // rows that are bound to the session but belong to no lease, as the last comparison found
	failing   bool
}

// number returns the id of s, or 0 if s is nil.
func (s *session) number() store.SessionID {
	if s == nil {
		return 0
	}
	return s.id
}

// extend records that the session was begun or renewed by a statement sent at sent. The caller holds
// the watchdog's mu.
func (s *session) extend(sent time.Time) {
	s.renewed, s.trusted = sent, TrustedUntil(sent, s.length)
	s.until.Store(Instant(s.trusted))
}

// promised returns the earliest expiry of the session's row. The caller holds the watchdog's mu.
func (s *session) promised() time.Time { return s.renewed.Add(s.length) }

// beginSession begins a session for the leases that are due. If that fails, their own leases are
// renewed once more.
func (d *Watchdog) beginSession(id store.SessionID) {
	timeout, retry := d.timeouts(renewal{})
	ctx, cancel := store.WithRetryLimit(d.group.Ctx, timeout/2)
	sent, err := d.repo.BeginSession(ctx, id, d.Length)
	cut := ctx.Err() != nil
	cancel()
	d.mu.Lock()
	d.beginning = false
	trusted := TrustedUntil(sent, d.Length)
	switch {
	case d.group.Ctx.Err() != nil:
	case err == nil && time.Now().Before(trusted):
		s := &session{id: id, length: d.Length}
		s.extend(sent)
		d.sessionRow = sent
		s.loss = time.AfterFunc(time.Until(trusted), func() { d.onSessionTimer(s) })
		s.next = time.AfterFunc(time.Hour, func() { d.renewSession(s) })
		d.session = s
	case cut:
		d.beginAfter = time.Now().Add(store.LockWaitTimeout) // the statement may wait in the server
	default:
		d.beginAfter = time.Now().Add(retry)
	}
	d.mu.Unlock()
	if err != nil && !errors.Is(err, store.ErrNoneToSpare) && d.group.Ctx.Err() == nil {
		d.failures.Add(1)
		d.Log.Debug("mysqllock: session not begun, trying again", "err", err)
	}
	d.run()
}

// startSession begins a session in the background. The caller holds mu.
func (d *Watchdog) startSession() {
	if !d.beginning {
		d.beginning = true
		d.lastSession++
		id := d.lastSession
		d.group.Go(func() { d.beginSession(id) })
	}
}

// rowIsKept is how long the row of a session is assumed to exist after it was written.
const rowIsKept = time.Minute

// EnsureSession reports whether this process has a session row in the table, dead or alive. If that
// is not certain, it begins a session in the background.
func (d *Watchdog) EnsureSession() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if d.session == nil && now.Sub(d.sessionRow) > rowIsKept && !now.Before(d.beginAfter) {
		d.startSession()
	}
	return d.session != nil || now.Sub(d.sessionRow) < 2*rowIsKept
}

// bind records that the row of a lease was bound to a session. The caller holds mu.
func (d *Watchdog) bind(ls *Lease, s *session) {
	if s == nil || s != d.session || ls.ended || !ls.requested.Auto {
		return
	}
	ls.boundAt, ls.bindingLost = time.Now(), false
	if ls.session == s {
		return
	}
	ls.session = s
	ls.publish()
	if s.bound++; s.bound == 1 && !s.renewing {
		s.schedule(s.renewed.Add(d.Length / 3))
	}
}

// schedule sets the time of the next renewal. The caller holds the watchdog's mu.
func (s *session) schedule(at time.Time) {
	s.due = at
	s.next.Reset(time.Until(at))
}

// renewSession renews a session, unless no lease is bound to it.
func (d *Watchdog) renewSession(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session != s || s.bound == 0 || s.renewing || time.Now().Before(s.due) {
		return
	}
	s.renewing = true
	d.group.Go(func() {
		ctx, cancel := d.limited(renewal{})
		r, err := d.repo.RenewSession(ctx, s.id, d.Length)
		cancel()
		switch {
		case err == nil:
			if compare := d.sessionRenewed(s, r); compare {
				d.compareRows(s, r.Moved)
			}
		case d.group.Ctx.Err() != nil:
		case errors.Is(err, store.ErrSessionDead):
			d.loseSession(s)
		default:
			d.sessionFailed(s, err)
		}
	})
}

// sessionRenewed records a successful renewal. It reports whether the rows in the table must now be
// compared with the leases: after every third renewal, or because another server has replied.
func (d *Watchdog) sessionRenewed(s *session, r store.SessionRenewal) (compare bool) {
	d.mu.Lock()
	recovered, bound, first := s.failing, s.bound, ""
	if recovered {
		first = d.firstBound(s)
	}
	s.renewing, s.failing = false, false
	if until := TrustedUntil(r.Sent, d.Length); d.session == s && time.Now().Before(s.trusted) && until.After(s.trusted) {
		s.extend(r.Sent)
		d.sessionRow = r.Sent
		s.loss.Reset(time.Until(until))
	}
	s.schedule(r.Sent.Add(d.Length / 3))
	s.renewals++
	if r.Forced {
		s.audits = 1 + auditsAfterForce
	}
	if s.audits > 0 {
		s.audits--
		d.auditLocked()
	}
	compare = r.Moved || s.renewals%3 == 0
	d.mu.Unlock()
	if recovered {
		d.Log.Info("mysqllock: renewals succeed again", "locks", bound, "first", first)
	}
	d.renewals.Add(int64(bound))
	d.Reported(bound, bound, nil)
	return compare
}

// auditsAfterForce is how many further renewals check all rows again. ForceUnlock marks the session
// before and after it frees the row; if its process crashes in between, the row may be freed after
// the first check.
const auditsAfterForce = 3

// sessionFailed records a renewal that failed, and tries again soon.
func (d *Watchdog) sessionFailed(s *session, err error) {
	timeout, retry := d.timeouts(renewal{})
	if errors.Is(err, store.ErrRowLocked) {
		retry = timeout / 20 // the row may be locked often, but briefly
	}
	d.mu.Lock()
	s.renewing = false
	level, bound, first := slog.LevelDebug, s.bound, d.firstBound(s)
	if !s.failing {
		s.failing, level = true, slog.LevelWarn
	}
	s.schedule(time.Now().Add(retry))
	d.mu.Unlock()
	d.Log.Log(d.group.Ctx, level, "mysqllock: renewal failed, trying again", "locks", bound, "first", first, "err", err)
	d.failures.Add(1)
	d.Reported(bound, 0, err)
}

// firstBound returns the name of any lock that is bound to a session. The caller holds mu.
func (d *Watchdog) firstBound(s *session) string {
	for ls := range d.leases {
		if ls.session == s {
			return store.NameOf(ls.Claim.Name)
		}
	}
	return ""
}

// onSessionTimer is called when the timer for the end of trust in a session fires.
func (d *Watchdog) onSessionTimer(s *session) {
	d.mu.Lock()
	left := time.Until(s.trusted)
	if left > 0 {
		s.loss.Reset(left) // it was renewed as the timer fired
	}
	d.mu.Unlock()
	if left <= 0 {
		d.loseSession(s)
	}
}

// loseSession ends a session, and reports the loss of the leases that depend on it. If the row's own
// lease has not ended, it is renewed, and the row is bound to the next session.
func (d *Watchdog) loseSession(s *session) {
	d.mu.Lock()
	if d.session != s {
		d.mu.Unlock()
		return
	}
	d.session = nil
	s.stop()
	at := time.Now()
	var lost []*Lease
	for ls := range d.leases {
		switch {
		case ls.session != s:
		case at.Before(ls.ownEnd()):
			ls.session = nil
			ls.publish()
			ls.timer.Reset(time.Until(ls.end()))
			ls.due = at
		default:
			d.expire(ls)
			lost = append(lost, ls)
		}
	}
	d.mu.Unlock()
	for _, ls := range lost {
		ls.holder.LeaseLost()
	}
	d.run()
}

// stop ends trust in a session, and stops its timers. The caller holds the watchdog's mu.
func (s *session) stop() {
	s.until.Store(math.MinInt64)
	s.loss.Stop()
	s.next.Stop()
}

// EndSession ends the session in the database, so that it keeps no row any longer. It must be called
// after Close.
func (d *Watchdog) EndSession(ctx context.Context) error {
	d.mu.Lock()
	s := d.session
	d.session = nil
	d.mu.Unlock()
	if s == nil {
		return nil
	}
	return d.repo.EndSession(ctx, s.id)
}
