package mysqllock

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A share represents the row through which this process holds a name shared. All shared holds of
// the process depend on the lease of that row; one with a fixed lease also has its own deadline.
// Locker.mu protects the fields.
type share struct {
	locker  *Locker
	name    string
	holder  string // the label in the row, as of WithHolder; "" if not set
	token   uint64
	lease   *lease.Lease
	holds   map[*hold]struct{}
	autos   int           // holds that request AutoRenew
	until   time.Time     // the latest end that any hold has requested
	minHold store.MinHold // how long the row must stay taken because of UnlockAfter
	looked  time.Time     // when the last check that found no waiting exclusive request was sent
}

// lookInterval is how long holds may join a share before the process checks again whether an
// exclusive request of another process waits. It is also the longest delay that joining holds can
// cause such a request.
const lookInterval = 50 * time.Millisecond

// startShare creates a share with its first hold, from a grant whose lease has the given length.
// looked is when the last check that found no waiting exclusive request was sent, or zero if there
// was none. The caller holds mu.
func (l *Locker) startShare(h *hold, g store.Grant, length time.Duration, looked time.Time) {
	s := &share{locker: l, name: h.key.name, holder: h.holder, token: g.Token, looked: looked, holds: map[*hold]struct{}{}}
	s.lease = l.watchdog.Start(g.Claim, g.Sent, length, h.request(), s)
	l.shares[s.name] = s
	l.enterShare(h, s)
}

// enterShare adds a hold to a share. The caller holds mu.
func (l *Locker) enterShare(h *hold, s *share) {
	s.holds[h] = struct{}{}
	h.share, h.tokens = s, tokenRange{token: s.token}
	h.lease.Store(s.lease)
	l.shareChanged(h)
}

// joinableShare returns the share of this process whose row has the label of the call, or nil. The
// caller holds mu.
func (c *call) joinableShare() *share {
	if s := c.l.shares[c.name]; s != nil && s.holder == c.holder {
		return s
	}
	return nil
}

// joinShare adds a hold to the share of this process, without a statement. It returns nil if the
// process has no joinable share that can be trusted for long enough, if the last check for exclusive
// requests is too old, or if other requests of the process wait. If head is set, the call is the
// head of the queue, and the requests behind it do not matter.
func (c *call) joinShare(head bool) *Lock {
	if c.mode != store.Shared {
		return nil
	}
	l := c.l
	l.mu.Lock()
	s, now := c.joinableShare(), time.Now()
	if s == nil || l.isClosed() || s.lease.Remaining() < c.minRemaining() || now.Sub(s.looked) > lookInterval ||
		c.ctx.Err() != nil || l.holds[c.key()] != nil || !head && l.queues.Has(c.name) {
		l.mu.Unlock()
		return nil
	}
	h := c.newHold(s.token, tokenRange{})
	h.waiter, h.handedOver = nil, true
	k := c.addHandle(h, now)
	l.enterShare(h, s)
	l.holdBegan(c, h, now)
	return k
}

// minRemaining returns how long a share must still be trusted for the call to join it. That leaves
// a renewal enough time to write the lease that the call requests.
func (c *call) minRemaining() time.Duration {
	return min(c.l.rowLease(c.lease)/2, time.Second)
}

// joinShareAsHead is joinShare for the head of the queue. If the last check is too old, it first checks
// that no request of another process waits for the name, and that the share still owns its row, which
// ForceUnlock may have freed. Otherwise, or if the check fails, it closes the share.
func (c *call) joinShareAsHead() (*Lock, error) {
	if c.mode != store.Shared {
		return nil, nil
	}
	l := c.l
	l.mu.Lock()
	s := c.joinableShare()
	fresh := s == nil || time.Since(s.looked) <= lookInterval
	l.mu.Unlock()
	if fresh {
		return c.joinShare(true), nil
	}
	claim := s.lease.Claim
	rows, sent, ended := c.look(s.name, claim.Name)
	if ended != nil {
		return nil, ended
	}
	l.mu.Lock()
	row, owned := rows[s.name], rows[claim.Name].Owner == claim.Owner
	if row.Remaining > 0 || row.Next != 0 || !owned { // owned is false if look failed
		l.closeShare(s)
	}
	s.looked = sent
	l.mu.Unlock()
	return c.joinShare(true), nil
}

// closeShare lets no further hold join a share. The caller holds mu.
func (l *Locker) closeShare(s *share) {
	if l.shares[s.name] == s {
		delete(l.shares, s.name)
	}
}

// shareChanged is called when the open handles of a hold request other leases. It updates the share
// and the deadline of the hold. The caller holds mu.
func (l *Locker) shareChanged(h *hold) {
	s, all := h.share, h.request()
	switch {
	case all.Auto && !h.auto:
		s.autos++
	case !all.Auto && h.auto:
		s.autos--
	}
	h.auto = all.Auto
	if all.Until.After(s.until) {
		s.until = all.Until
	}
	l.renewShare(s)

	var deadline time.Time
	for _, k := range h.handles {
		if trusted := k.requested.Until.Add(-k.requested.Margin); !all.Auto && trusted.After(deadline) {
			deadline = trusted
		}
	}
	h.setDeadline(deadline)
}

// renewShare adjusts the lease of a share to what its holds request. The caller holds mu.
func (l *Locker) renewShare(s *share) {
	l.watchdog.Change(s.lease, lease.Request{Auto: s.autos > 0, Until: s.until}, len(s.holds))
}

// leaveShare removes a hold from its share, and reports whether other holds remain. If none do, it
// closes the share.
func (l *Locker) leaveShare(h *hold) (others bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaveShareLocked(h)
}

// leaveShareLocked is leaveShare for a caller that holds mu.
func (l *Locker) leaveShareLocked(h *hold) (others bool) {
	s := h.share
	if s == nil {
		return false
	}
	if h.timer != nil {
		h.timer.Stop()
	}
	delete(s.holds, h)
	m := h.minimum()
	s.minHold.Held = max(s.minHold.Held, m.Held)
	if m.Until.After(s.minHold.Until) {
		s.minHold.Until = m.Until
	}
	if h.auto {
		s.autos--
	}
	if len(s.holds) == 0 {
		l.closeShare(s)
		return false
	}
	l.renewShare(s)
	return true
}

// releaseLost removes a lost hold from its share. If no hold remains, and the row itself was not
// lost, it releases the row.
func (l *Locker) releaseLost(h *hold) {
	if l.leaveShare(h) {
		return
	}
	ls, m := h.lease.Load(), h.rowMinimum()
	live := ls.Live()
	switch span := l.watchdog.Stop(ls); {
	case !live:
	case m != store.MinHold{}:
		l.releaser.AddAfter(ls.Claim, m, time.Now())
	default:
		l.releaser.Add(ls.Claim, span, false, time.Now())
	}
	l.repo.HoldEnded()
}

// LeaseLost ends all holds of the share. The watchdog calls it when the lease of the row can no
// longer be trusted.
func (s *share) LeaseLost() {
	l := s.locker
	l.mu.Lock()
	l.closeShare(s)
	holds := slices.Collect(maps.Keys(s.holds))
	l.mu.Unlock()
	for _, h := range holds {
		h.LeaseLost()
	}
}

// startDowngrade marks a hold for a downgrade if all its exclusive handles are unlocked and shared
// ones remain. The caller holds mu. If startDowngrade returns true, the caller must unlock mu and
// then call downgrade.
func (l *Locker) startDowngrade(h *hold) bool {
	exclusive := func(k *Lock) bool { return !k.shared }
	if h.share != nil || h.downgrading || len(h.handles) == 0 || slices.ContainsFunc(h.handles, exclusive) {
		return false
	}
	l.working.Add(1) // safe: Close ends all handles before it waits for working
	h.downgrading, h.downgraded = true, make(chan struct{})
	return true
}

// downgradeLater retries, after a delay, a downgrade that failed with a transient error: for
// example, because a transaction under Guard has the row locked.
func (l *Locker) downgradeLater(h *hold, pause background.Backoff) {
	time.AfterFunc(pause.Next(), func() {
		l.mu.Lock()
		again := h.ended == nil && l.startDowngrade(h)
		l.mu.Unlock()
		if again {
			l.downgrade(h, pause)
		}
	})
}

// lockAfterDowngrade waits until no downgrade of the hold is in flight, and locks mu. If ctx ends
// first, it returns the cause and does not lock mu.
func (l *Locker) lockAfterDowngrade(ctx context.Context, h *hold) error {
	for l.mu.Lock(); h.downgrading; l.mu.Lock() {
		downgraded := h.downgraded
		l.mu.Unlock()
		select {
		case <-downgraded:
		case <-ctx.Done():
			return causeOf(ctx)
		}
	}
	return nil
}

// becameShared reports whether a hold, which had the lease ls, has become shared and therefore has
// another row now. It waits for a downgrade in flight.
func (l *Locker) becameShared(h *hold, ls *lease.Lease) bool {
	l.lockAfterDowngrade(context.Background(), h)
	defer l.mu.Unlock()
	return h.lease.Load() != ls
}

// downgrade turns an exclusive hold into a shared one. If that fails, the lock stays exclusive, and
// the downgrade is retried after a transient error; if the outcome is unknown, the lock is lost.
// While the downgrade is in flight, a renewal that does not match the old row proves no loss, but
// the hold is trusted only for the shorter of the leases of its old and new rows.
func (l *Locker) downgrade(h *hold, pause background.Backoff) {
	defer l.working.Done()
	l.mu.Lock()
	ls, all := h.lease.Load(), h.request()
	length := max(time.Until(all.Until), minLease)
	if all.Auto {
		length = max(length, l.lease)
	}
	h.setDeadline(lease.TrustedUntil(time.Now(), length))
	l.mu.Unlock()

	ctx, cancel := context.WithTimeout(l.background, unlockTimeout)
	defer cancel()
	g, next, err := l.repo.Downgrade(ctx, ls.Claim, store.AcquireRequest{
		Claim: store.Claim{Name: h.key.name, Owner: store.NewOwnerID(l.process)}, Mode: store.Shared, Holder: h.holder, Lease: length,
	})
	if err != nil {
		l.log.Debug("mysqllock: lock stays exclusive", "name", h.key.name, "err", err)
	}
	unknown := g.Claim != store.Claim{} && store.OutcomeUnknown(err)
	if unknown || errors.Is(err, store.ErrNotOwned) {
		l.watchdog.OwnerChanged(ls.Claim)
	}
	l.mu.Lock()
	h.downgrading = false
	waiter := h.waiter
	if h.ended == nil && err == nil {
		l.watchdog.Stop(ls)
		h.waiter = nil
		l.startShare(h, g, length, time.Time{})
	} else {
		h.setDeadline(time.Time{})
		waiter = nil
	}
	unused := h.share == nil && g.Claim != store.Claim{}
	gone := unknown || h.ended == ErrLost // after its deadline, the row may still be renewed
	if gone {
		l.watchdog.Stop(ls)
	}
	close(h.downgraded)
	if unused {
		l.releaser.Add(g.Claim, length, err != nil, time.Now())
	}
	if gone {
		l.releaser.Add(ls.Claim, lease.UntilReleased, false, time.Now())
	}
	l.checkLoss(h)
	l.unlockMu()
	l.leaveQueue(waiter)
	switch {
	case err == nil:
		l.waker.Released([]string{h.key.name}, next)
	case !unknown && store.Transient(err):
		l.downgradeLater(h, pause)
	}
}
