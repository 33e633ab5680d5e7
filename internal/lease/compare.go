package lease

import (
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// Audit makes the watchdog check the rows of all leases soon, because one was freed by force.
func (d *Watchdog) Audit() {
	d.mu.Lock()
	d.auditLocked()
	d.mu.Unlock()
}

// auditLocked is Audit for a caller that holds mu.
func (d *Watchdog) auditLocked() {
	at := time.Now()
	for ls := range d.leases {
		if ls.due.IsZero() || ls.due.After(at) {
			ls.due = at
		}
	}
	d.wake(at)
}

// compareRows compares the rows that are bound to a session with its leases. If there are more than
// a batch, it first compares only their number, unless all is set. Rows and leases differ if a row
// was deleted by hand, or if a failover lost a binding, an acquire or a release. After a lost
// release, the session would keep the row forever.
func (d *Watchdog) compareRows(s *session, all bool) {
	ctx, cancel := d.limited(renewal{})
	defer cancel()
	d.mu.Lock()
	bound := s.bound
	d.mu.Unlock()
	if !all && bound > store.BatchSize {
		if n, err := d.repo.CountBound(ctx, s.id); err != nil || n == bound {
			return
		}
	}
	rows, sent, err := d.repo.Bound(ctx, s.id)
	if err != nil {
		d.Log.Debug("mysqllock: rows not compared", "err", err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	kept := make(map[store.Claim]struct{}, len(rows))
	for _, c := range rows {
		kept[c] = struct{}{}
	}
	at := time.Now()
	for ls := range d.leases {
		_, ok := kept[ls.Claim]
		delete(kept, ls.Claim)
		if !ok && ls.session == s && ls.boundAt.Before(sent) {
			ls.bindingLost, ls.due = true, at
		}
	}
	for c := range kept {
		// A release may be in flight, so two comparisons in succession must find the row.
		if _, again := s.unmatched[c]; again {
			d.Releaser.Add(c, UntilReleased, false, at)
			d.Log.Warn("mysqllock: a row that nobody holds is released", "name", store.NameOf(c.Name))
		}
	}
	s.unmatched = kept
	d.wake(at)
}
