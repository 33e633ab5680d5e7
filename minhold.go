package mysqllock

import (
	"context"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// UnlockAfter ends the handle like [Lock.Unlock], but the name stays taken until the time held has
// passed since the lock was acquired, by the database's clock, even if this process ends. So if
// every process of a fleet tries to run the same job, at most one of them runs it in that time. If
// held is not positive, or has passed already, UnlockAfter does the same as Unlock.
//
// If the owner has other handles of the lock, all this happens when the last of them is unlocked,
// by whichever method, with the longest time that any of them requested. A lock that
// another goroutine of this process handed over counts as acquired at the handoff. Re-entry and
// [Locker.Attach] do not count as acquiring.
//
// Until the time is over, [Locker.Inspect] shows the name as held, and until when, and nobody can
// acquire it, not even this process; but a name that was held shared can still be shared. Only
// [Locker.ForceUnlock] frees it sooner. Waiters acquire the lock when the time is over.
//
// UnlockAfter blocks, and returns errors, as Unlock does. After an error that leaves the
// outcome unknown, the library retries in the background, and in Close, and never frees the
// name early.
func (k *Lock) UnlockAfter(held time.Duration) error {
	return opError("unlock", k.Name(), k.unlock(held))
}

// minimum returns how long the row stays taken after the hold has ended.
func (h *hold) minimum() store.MinHold {
	switch {
	case h.minHold == 0:
		return store.MinHold{}
	case !h.handedOver:
		return store.MinHold{Held: h.minHold}
	default: // acquired_at in the row is that of an earlier hold
		return store.MinHold{Until: h.began.Add(h.minHold)}
	}
}

// rowMinimum is minimum for the last hold of a row. It also covers the holds that have shared the
// row.
func (h *hold) rowMinimum() store.MinHold {
	if h.share != nil {
		return h.share.minHold
	}
	return h.minimum()
}

// releaseHold releases the row of a hold that has ended. It gives up at end.
func (l *Locker) releaseHold(end time.Time, h *hold) error {
	ls := h.lease.Load()
	c, span, m := ls.Claim, l.watchdog.Stop(ls), h.rowMinimum()
	if m == (store.MinHold{}) {
		return l.releaseBy(end, c, span, m, l.grantOnRelease(h))
	}
	l.releaser.AddAfter(c, m, end) // first, so that nothing frees the row too early
	err := l.releaseBy(end, c, span, m, "")
	if err == nil || err == ErrLost {
		l.releaser.Forget(c)
	}
	return err
}

// keepShared adds another row that keeps the name taken for the minimum time of a shared hold that
// has ended, if other holds of this process still share its row. The new row outlasts them and the
// process.
func (l *Locker) keepShared(end time.Time, h *hold) error {
	l.mu.Lock()
	alone := len(h.share.holds) == 1
	if alone {
		l.closeShare(h.share) // nobody joins before the row is released
	}
	c, m := h.lease.Load().Claim, h.minimum()
	l.mu.Unlock()
	if alone || m == (store.MinHold{}) {
		return nil
	}
	id := store.NewOwnerID(l.process)
	err := l.onRow(context.Background(), end, c, func(ctx context.Context) (kept bool, err error) {
		return l.repo.KeepShared(ctx, c, id, h.holder, m)
	})
	if err == nil {
		l.mu.Lock()
		h.minHold = 0 // the row that the others share need not stay taken
		l.mu.Unlock()
	}
	return err
}

// sendRelease releases a row. The row stays taken for the minimum time m, if there is one;
// otherwise, if grant is not "", it may be granted to the next process.
func (l *Locker) sendRelease(ctx context.Context, c store.Claim, m store.MinHold, grant string) (freed bool, next store.Process, err error) {
	switch {
	case m != store.MinHold{}:
		return l.repo.ReleaseAfter(ctx, c, m)
	case grant != "":
		return l.repo.ReleaseToNext(ctx, c, grant)
	default:
		return l.repo.Release(ctx, c)
	}
}
