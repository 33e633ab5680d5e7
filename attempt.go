package mysqllock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/mysqllock/mysqllock/internal/background"
	"github.com/mysqllock/mysqllock/internal/outage"
	"github.com/mysqllock/mysqllock/internal/store"
)

// An attempt is one acquiring statement, with a context of its own. A statement that is cut off
// may still acquire the lock. So an attempt continues after its caller has returned, and is undone
// when its reply arrives; until then, probes find out what blocks it. An attempt that waits in the
// server for a locked row is not cut off, because the server would continue to wait.
type attempt struct {
	l              *Locker
	inline         bool // runs on the caller's goroutine
	again          bool // an earlier attempt of the call was refused
	request        store.AcquireRequest
	handoff        *handoff // whose owner in the row the attempt replaces, or nil
	waiter         *waiter
	ctx            context.Context
	cancel         context.CancelFunc
	grant          store.Grant
	err            error
	continuesRange bool // the new hold continues the token range of the handoff

	probing *time.Timer // the next probe
	locked  atomic.Bool // the last probe found the row locked by a transaction

	inFlight // unused if inline
}

// inFlight is a statement that continues if its caller returns before the reply.
type inFlight struct {
	done   chan struct{}              // closed by replied
	cutoff atomic.Pointer[time.Timer] // nil at first; then answered, or, if the caller has returned, what cuts the statement off
}

var answered = new(time.Timer)

// replied records that the reply has arrived, and reports whether the caller had returned before.
func (f *inFlight) replied() (detached bool) {
	cutoff := f.cutoff.Swap(answered)
	close(f.done)
	if cutoff == nil {
		return false
	}
	cutoff.Stop()
	return true
}

// detach records that the caller returns before the reply, and that cutoff will cut the statement
// off. If the reply has arrived, detach stops cutoff and returns false.
func (f *inFlight) detach(cutoff *time.Timer) bool {
	if f.cutoff.CompareAndSwap(nil, cutoff) {
		return true
	}
	cutoff.Stop()
	return false
}

// attemptTimeout returns the time limit of an acquiring statement. A grant that arrives when its
// lease has nearly ended is useless.
func attemptTimeout(lease time.Duration) time.Duration {
	return min(max(lease*2/3, time.Second), 10*time.Second)
}

// attempt returns a new attempt. If offer is not nil, the attempt replaces the owner that the
// handoff has in the row.
func (c *call) attempt(offer *handoff) *attempt {
	l := c.l
	lease := l.rowLease(c.lease)
	a := &attempt{
		l: l, handoff: offer, waiter: c.waiter, again: c.again,
		request: store.AcquireRequest{
			Claim: c.claim, Claimed: c.claim != store.Claim{},
			Mode: c.mode, Limit: c.limit, Holder: c.holder, Lease: lease,
		},
	}
	if !a.request.Claimed {
		a.request.Claim = store.Claim{Name: c.queueName, Owner: store.NewOwnerID(l.process)}
	}
	if offer != nil {
		a.request.Replaces = offer.lease.Claim.Owner
		if offer.usedUp() && c.mode == store.Exclusive {
			a.request.Replaced = offer.token
		}
	} else {
		a.request.Replaces, c.granted = c.granted.Owner, store.Claim{}
	}
	parent := c.observed.addValues(l.background)
	a.inline = l.dbIsFast.Load() && a.request.Replaces == "" && !c.again
	// The statement may wait for a locked row or on a dead connection.
	timeout := attemptTimeout(lease)
	if a.inline {
		if !c.cutoffTime.IsZero() {
			timeout = min(timeout, time.Until(c.cutoffTime)+cancelGrace)
		}
		a.ctx, a.cancel = context.WithTimeout(parent, timeout)
	} else {
		a.ctx, a.cancel = context.WithCancel(parent)
		if c.wait > timeout {
			a.cutAfter(timeout)
		}
	}
	a.probing = time.AfterFunc(outage.ProbeAfter, a.probe)
	c.waiter.State.Sent(c.waiter, a.request.Claim)
	c.waiter.Admit(true)
	select {
	case <-c.waiter.Woken: // this attempt reads the row after that wake-up
	default:
	}
	if !c.noWait {
		a.request.EnlistAs = c.enlistAs()
		// A first attempt, which does not join the wait queue, must not claim the name: nobody
		// would signal this process when the shared holds end.
		a.request.MayClaim = a.request.EnlistAs != 0 || !l.waker.Signals()
	}
	return a
}

// cutAfter returns a timer that cuts the attempt off after d, or later if the attempt waits for a
// locked row.
func (a *attempt) cutAfter(d time.Duration) *time.Timer {
	began := time.Now()
	return background.AfterFunc(d, func() time.Duration {
		if a.locked.Load() && time.Since(began) < store.LockWaitTimeout && a.ctx.Err() == nil {
			return outage.ProbeInterval
		}
		a.cancel()
		return 0
	})
}

// probe finds out what blocks an attempt, and repeats that until the reply.
func (a *attempt) probe() {
	if a.ctx.Err() != nil || !a.l.enter() {
		return
	}
	defer a.l.working.Done()
	a.locked.Store(a.l.outages.Probe(a.l.background, a.waiter.State, a.waiter, a.request.Claim) == store.RowLocked)
	if a.ctx.Err() == nil {
		a.probing.Reset(outage.ProbeInterval)
	}
}

func (a *attempt) run() {
	a.send()
	if a.replied() {
		a.undo()
	}
}

// send sends the statement and waits for its reply.
func (a *attempt) send() {
	defer a.cancel()
	defer a.probing.Stop()
	start := time.Now()
	a.grant, a.err = a.l.repo.Acquire(a.ctx, a.request)
	a.err = outage.Describe(a.err)
	if a.grant.Token > 0 {
		a.l.waker.Granted(a.request.Name)
	}
	if a.grant.Next != 0 {
		a.l.waker.Released([]string{a.request.Name}, a.grant.Next)
	}
	if fast := a.err == nil && time.Since(start) < fastReply; fast != a.l.dbIsFast.Load() {
		a.l.dbIsFast.Store(fast)
	}
	span := store.GrantLease
	if a.handoff != nil {
		a.continuesRange = a.request.Replaced > 0 && a.handoff.lease.Live()
		span = a.l.watchdog.Stop(a.handoff.lease)
		a.l.repo.HoldEnded()
	}
	// After a refusal, the old owner may still have the row: without autocommit, or when it is
	// killed, the statement matches nothing. A row that is bound to a session would stay held.
	if a.request.Replaces != "" && (a.err != nil || a.grant.Token == 0) {
		a.l.releaser.Add(store.Claim{Name: a.request.Name, Owner: a.request.Replaces}, span, false, time.Now())
	}
}

// undo releases whatever the attempt has acquired or may have acquired, and leaves the queue.
func (a *attempt) undo() {
	if a.err != nil {
		a.undoUnknown()
	} else if a.grant.Token > 0 {
		a.release()
	} else if a.grant.Claimed || a.request.Claimed {
		a.l.releaseClaim(a.request.Claim)
	}
	a.l.leaveQueue(a.waiter)
}

// undoUnknown has the releaser undo a failed attempt if it may have acquired the row.
func (a *attempt) undoUnknown() {
	unknown := store.OutcomeUnknown(a.err)
	if !unknown && !a.request.Claimed {
		return
	}
	claim := a.grant.Claim
	if claim == (store.Claim{}) {
		claim = a.request.Claim
	}
	var partly store.PartlySent
	if lease := max(a.request.Lease, store.ClaimLease); errors.As(a.err, &partly) {
		a.l.releaser.AddSeveral(claim, lease, time.Now())
	} else {
		a.l.releaser.Add(claim, lease, unknown, time.Now())
	}
}

// release releases the row of an unwanted grant, and wakes the next waiter.
func (a *attempt) release() {
	a.l.answered(a.waiter, true, a.again)
	a.l.releaseUnwanted(a.grant.Claim, a.request.Lease, a.l.newGrant())
}

// releaseUnwanted releases the row of a grant, or grants it to the next process if grant is not "",
// and wakes the next waiter of this process.
func (l *Locker) releaseUnwanted(c store.Claim, lease time.Duration, grant string) {
	if err := l.releaseBy(time.Now().Add(unlockTimeout), c, lease, store.MinHold{}, grant); err != nil {
		l.log.Debug("mysqllock: release of an unwanted grant, trying again", "name", store.NameOf(c.Name), "err", err)
	}
	l.repo.HoldEnded()
	l.queues.Wake(store.QueueOf(c.Name))
}
