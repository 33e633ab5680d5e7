package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mysqllock/mysqllock"
)

// A hold is a lock that a client holds. It records what happens to it.
type hold struct {
	c      *cycle
	locker *identifiedLocker
	r      *rand.Rand
	lock   *mysqllock.Lock // the handle in use
	event  event           // has the fields that all events of the hold have in common

	// lostAt returns when the Context of the handle ended with ErrLost, or 0 if it did not. It may
	// be called once.
	lostAt func() instant
}

// beginHold records a grant and returns its hold. e describes the request.
func (c *cycle) beginHold(r *rand.Rand, l *identifiedLocker, lock *mysqllock.Lock, e event, lease time.Duration) *hold {
	if e.Mode == permit && e.From == "" {
		e.Slot = lock.Slot()
		e.Name = slotName(e.Name, e.Slot)
	}
	// A downgraded lock stays exclusive if its row was locked, even when its ticket is attached.
	stillExclusive := e.From != "" && e.Mode == shared
	if lock.Shared() != (e.Mode == shared) && !stillExclusive || lock.Slot() != e.Slot || lock.Name() != semaphoreOf(e.Name) || e.Limit > 0 && e.Slot > e.Limit {
		c.recordWrong(l.holder, e.Name, fmt.Sprintf("shared: %t, slot %d, name %q, of %v", lock.Shared(), lock.Slot(), lock.Name(), e))
	}
	e.Kind, e.Holder, e.Token, e.ID, e.Lease = "grant", l.holder, lock.Token(), c.holds.Add(1), lease
	if lock.Err() == nil {
		e.Trust = e.Ret
	}
	c.record(e)
	h := &hold{c: c, locker: l, r: r, lock: lock, event: event{Holder: e.Holder, Name: e.Name, Mode: e.Mode, Slot: e.Slot, Token: e.Token, ID: e.ID}}
	h.watchContext()
	return h
}

// watchContext sets lostAt for the handle in use.
func (h *hold) watchContext() {
	lock := h.lock
	ended := make(chan instant, 1)
	stop := context.AfterFunc(lock.Context(), func() { ended <- now() })
	h.lostAt = func() (at instant) {
		if stop() {
			return 0
		}
		at = <-ended
		if context.Cause(lock.Context()) != mysqllock.ErrLost {
			return 0
		}
		h.c.count("losses reported")
		return at
	}
}

// use does something random with the lock.
func (h *hold) use(lease time.Duration) {
	c, r := h.c, h.r
	if c.order.Calm {
		c.sleep(c.ctx, rand.N(10*time.Millisecond))
		return
	}
	switch n := r.IntN(100); {
	case n < 15 && isReadWrite(h.event.Name):
		h.changeMode()
	case n < 30 && isReadWrite(h.event.Name):
		h.writeGuarded()
	case n < 50:
	case n < 70:
		h.keep(rand.N(10 * time.Millisecond))
	case n < 72:
		if isContended(h.event.Name) && r.IntN(10) > 0 {
			return // mostly, do not keep other clients waiting
		}
		h.keep(min(max(lease, c.order.Lease)*3/2, 4*time.Second)) // until after a fixed lease
		h.writeGuarded()
	case n < 84:
		h.writeGuarded()
	case n < 87:
		h.changeMode()
	case n < 90:
		h.writeRegister()
	case n < 95:
		h.reenter()
	default:
		h.extend()
	}
}

// keep holds the lock for d, or until it is lost or the cycle ends, and records trust.
func (h *hold) keep(d time.Duration) {
	for end := now().add(d); now() < end && h.c.ctx.Err() == nil; {
		if !h.checkErr() {
			return
		}
		h.c.sleep(h.c.ctx, min(20*time.Millisecond, end.sub(now())))
	}
}

// checkErr reports whether Err returns nil, and records trust if so.
func (h *hold) checkErr() bool {
	at := now()
	if h.lock.Err() != nil {
		return false
	}
	h.recordTrust(at)
	return true
}

// reenter acquires the lock a second time, and unlocks one of the two handles.
func (h *hold) reenter() {
	if h.event.Mode == permit {
		return // permits are not re-entrant
	}
	ctx := context.WithoutCancel(h.lock.Context())
	lease := mysqllock.AutoRenew
	if h.r.IntN(2) == 0 {
		lease = 10*time.Millisecond + rand.N(time.Second)
	}
	try := h.locker.TryLock
	if h.event.Mode == shared {
		try = h.locker.TryRLock
	}
	other, err := try(ctx, h.event.Name, 0, lease)
	if err != nil {
		if h.lock.Err() == nil {
			h.recordWrong(fmt.Sprintf("re-entry of token %d: %v", h.event.Token, err))
		}
		return
	}
	h.c.count("re-entries")
	if other.Token() != h.event.Token {
		h.recordWrong(fmt.Sprintf("token %d re-entered with token %d", h.event.Token, other.Token()))
	}
	h.keep(rand.N(5 * time.Millisecond))
	if h.r.IntN(2) == 0 {
		h.lock, other = other, h.lock
		h.record("shorten", now(), 0, 0)
	}
	if err := other.Unlock(); err == nil && other.Err() == nil {
		h.recordWrong(fmt.Sprintf("token %d: Err is nil after Unlock", h.event.Token))
	}
}

func (h *hold) extend() {
	lease := 10*time.Millisecond + rand.N(3*time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	call := now()
	if h.lock.Extend(ctx, lease) == nil {
		h.record("extend", call, now(), lease)
		h.c.count("extensions")
	}
	h.keep(rand.N(10 * time.Millisecond))
}

// unlock ends the hold by Unlock.
func (h *hold) unlock() { h.unlockAfter(0) }

// unlockAfter ends the hold by UnlockAfter, or by Unlock if after is 0.
func (h *hold) unlockAfter(after time.Duration) {
	c := h.c
	end := h.endEvent()
	var err error
	if after > 0 {
		err = h.lock.UnlockAfter(after)
	} else {
		err = h.lock.Unlock()
	}
	end.Ret = now()
	if err == nil && after > 0 {
		end.Lease = after
		c.count("unlocks after a time")
	}
	h.recordEnd(end, err)
	if h.r.IntN(20) == 0 {
		if err := h.lock.Unlock(); !errors.Is(err, mysqllock.ErrNotHeld) && !errors.Is(err, mysqllock.ErrClosed) {
			h.recordWrong(fmt.Sprintf("the second Unlock of token %d: %v", end.Token, err))
		}
	}
}

// endEvent returns the event of a call that ends the hold and begins now.
func (h *hold) endEvent() event {
	end := h.event
	end.Kind = "end"
	if at := now(); h.lock.Err() == nil {
		end.Trust = at
	}
	end.Signal = h.lostAt()
	end.Call = now()
	return end
}

// recordEnd records the end of the hold. err is the error of Unlock.
func (h *hold) recordEnd(end event, err error) {
	c := h.c
	switch {
	case err == nil:
		end.Outcome = "unlocked"
		c.count("cycles")
	case errors.Is(err, mysqllock.ErrLost):
		end.Outcome = "lost"
		c.count("lost")
	case errors.Is(err, mysqllock.ErrClosed):
		end.Outcome = "closed"
	case errors.Is(err, mysqllock.ErrNotHeld):
		h.recordWrong(fmt.Sprintf("the first Unlock of token %d: %v", end.Token, err))
	default:
		end.Outcome = "unknown"
		c.count("unlocks with an unknown outcome")
	}
	c.record(end)
}

func (h *hold) record(kind string, call, ret instant, lease time.Duration) {
	e := h.event
	e.Kind, e.Call, e.Ret, e.Lease = kind, call, ret, lease
	h.c.record(e)
}

// recordTrust records that Err returned nil right after an instant.
func (h *hold) recordTrust(at instant) {
	e := h.event
	e.Kind, e.Trust = "trust", at
	h.c.record(e)
}

// recordWrong records a wrong result of the library.
func (h *hold) recordWrong(what string) { h.c.recordWrong(h.locker.holder, h.event.Name, what) }
