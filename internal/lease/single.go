package lease

import (
	"errors"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// maxSingle limits the number of statements in flight that renew a single row and may wait for it.
const maxSingle = 4

// renewSkipped renews one by one, in the background, the leases whose rows a batch has skipped, because a
// row for which many callers compete may be locked whenever a batch comes. Leases beyond maxSingle join a
// batch again soon. renewSkipped logs the leases that have less than a third of their time left.
func (d *Watchdog) renewSkipped(b batch, leases []*Lease) {
	if len(leases) == 0 {
		return
	}
	_, retry := d.timeouts(b.renewal)
	now := time.Now()
	var starving []*Lease
	d.mu.Lock()
	for _, ls := range leases {
		if ls.ended {
			continue
		}
		ls.due = now.Add(retry)
		if ls.trusted.Sub(now) < b.length/3 {
			starving = append(starving, ls)
		}
		if ls.single || d.single == maxSingle {
			continue
		}
		ls.single = true
		d.single++
		d.group.Go(func() { d.renewSingle(batch{b.renewal, []*Lease{ls}, now}) })
	}
	d.mu.Unlock()
	if len(starving) > 0 {
		d.failed(b, starving, store.ErrRowLocked)
	}
}

// renewSingle renews the only lease of a batch with a statement that may wait for the row.
func (d *Watchdog) renewSingle(b batch) {
	ls := b.leases[0]
	owned, sent, err := d.repo.Extend(d.group.Ctx, ls.Claim, b.length, b.holds, b.session.number())
	d.mu.Lock()
	ls.single = false
	d.single--
	if ls.expired && err == nil && owned && d.group.Ctx.Err() == nil {
		d.Releaser.Add(ls.Claim, d.span(ls), false, time.Now()) // lost meanwhile, so no hold uses the row
	}
	d.mu.Unlock()
	switch {
	case err == nil && owned:
		d.extendedAll(b, b.leases, sent)
	case err == nil:
		d.lost(b, b.leases) // reads the row first, because a killed statement may also match nothing
	case !errors.Is(err, store.ErrRowLocked):
		d.failed(b, b.leases, err)
	}
}
