package mysqllock

import (
	"context"
	"strings"
	"time"

	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/store"
)

// Direct handoff: a release may grant the row to the process at the head of its wait queue (see
// ReleaseToNext in package store). enlistAs decides which processes accept that, grantOnRelease which
// releases do it. The process that gets the row only reads it. The head of its own queue then turns
// the grant into a hold, whose short lease the watchdog extends. Package wake releases a grant that
// no head takes.

// takesGrant reports whether the call can use a row that a release grants to the process. The row
// then has the label of the process, and the lease GrantLease.
func (c *call) takesGrant() bool {
	return c.l.direct && c.mode == store.Exclusive && c.holder == "" && c.l.rowLease(c.lease) >= store.GrantLease
}

// enlistAs returns the id under which the next attempt joins the row's wait queue, or 0 if it does
// not join. A release may grant the row only to a process that signals reach, because nobody else can
// take the row meanwhile. That process must also have a session row, where operators see its label.
func (c *call) enlistAs() store.Process {
	l := c.l
	as := l.waker.Enlist(c.queueName, c.again)
	if as.CanListen() && l.waker.Signalled() && c.takesGrant() && l.watchdog.EnsureSession() {
		l.waker.ExpectGrant(c.queueName)
		return as.Direct()
	}
	return as
}

// newGrant returns the random half of the owner id that a release writes if it grants the row, or ""
// if it must not grant it.
func (l *Locker) newGrant() string {
	if !l.direct || !l.waker.Signals() {
		return ""
	}
	return store.NewGrantID()
}

// grantOnRelease is newGrant for the release of a hold. It returns "" if a transaction may be under
// Guard, because a grant changes the token and would wait for it. The transaction may also belong to
// an earlier, detached hold, if this one was attached and so has no waiter.
//
// A grant takes 10 % longer than a plain release. So the release of a brief hold grants nothing,
// unless an attempt of this process was refused recently.
func (l *Locker) grantOnRelease(h *hold) string {
	if h.waiter == nil || h.guarded.Load() {
		return ""
	}
	if time.Since(h.began) < briefHold && !l.waker.Contended(h.key.name) {
		return ""
	}
	return l.newGrant()
}

const briefHold = 5 * time.Millisecond

// hasGranted reports whether an earlier copy of a release, whose reply was lost, has granted the row.
// next is the process to signal, or 0 if the grant is old or has ended.
func (l *Locker) hasGranted(ctx context.Context, name, grant string) (granted bool, next store.Process, err error) {
	rows, _, err := l.repo.Look(ctx, []string{name})
	row := rows[name]
	if granted = err == nil && strings.HasSuffix(row.Owner, "="+grant); granted && row.Grantee != 0 {
		next = row.Grantee.Direct()
	}
	return granted, next, err
}

// takeGrant turns a grant that the listener has found for the name into a hold. If the call cannot
// use the grant, either its next attempt replaces the owner, or the row is released.
func (c *call) takeGrant() (*Lock, error) {
	l := c.l
	g, ok := l.waker.TakeGrant(c.queueName)
	if !ok {
		return nil, nil
	}
	if time.Now().Before(lease.TrustedUntil(g.Sent, g.Lease)) {
		l.waker.Granted(c.queueName)
	}
	if !c.takesGrant() {
		c.replaceGrant(g.Claim)
		return nil, nil
	}
	l.repo.HoldBegan()
	c.waiter.State.Sent(c.waiter, g.Claim)
	return c.beginHold(&attempt{
		l: l, waiter: c.waiter, again: true, grant: g,
		request: store.AcquireRequest{Claim: g.Claim, Lease: g.Lease},
	})
}

// replaceGrant makes the next attempt replace the owner of a row that a release has granted to this
// process. A request for a shared lock cannot do that, so it releases the row instead.
func (c *call) replaceGrant(granted store.Claim) {
	if c.mode == store.Exclusive {
		c.granted = granted
	} else {
		c.l.waker.GiveBack(granted)
	}
}

// findGrant is called after an attempt was refused because a release has granted the row to this
// process, and the signal was lost or has not arrived yet. It reads the row to find the grant.
func (c *call) findGrant() error {
	rows, _, ended := c.look(c.queueName)
	if ended != nil {
		return ended
	}
	row := rows[c.queueName]
	if granted := (store.Claim{Name: c.queueName, Owner: row.Owner}); row.Grantee == c.l.process && c.l.waker.ClaimGrant(granted) {
		c.replaceGrant(granted)
		return nil
	}
	// The grant was taken or has ended, or the read failed.
	return await(c, time.After(c.pause.Next()), c.timeout)
}

// look reads rows, in at most confirmTimeout, and in the time that the call has left. rows is nil if that
// fails. If the call must end first, look returns the reason, and does not cut off the statement, which
// would cost the pool a connection.
func (c *call) look(names ...string) (rows map[string]store.Row, sent time.Time, ended error) {
	limit := confirmTimeout
	if !c.cutoffTime.IsZero() {
		limit = max(minTimeout, min(limit, time.Until(c.cutoffTime)))
	}
	looked := make(chan struct{})
	var found map[string]store.Row
	var at time.Time
	c.l.working.Go(func() {
		defer close(looked)
		ctx, cancel := context.WithTimeout(c.l.background, limit)
		defer cancel()
		found, at, _ = c.l.repo.Look(ctx, names)
	})
	if ended = await(c, looked, c.cutoff); ended != nil {
		return nil, time.Time{}, ended
	}
	return found, at, nil
}
