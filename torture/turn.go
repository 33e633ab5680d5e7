package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
)

// appBound bounds the application's own statements.
const appBound = 3 * time.Second

// longestLease is that of any lock.
const longestLease = 40 * time.Second

// turn is one acquisition of a random kind, what is done under it, and its end.
func (c *cycle) turn(r *rand.Rand) {
	l := c.locker.Load()
	name := c.order.Names.pick(r)
	if !c.order.Calm && r.IntN(10) == 0 {
		c.burst(r, l, name)
		return
	}
	if !c.order.Calm && r.IntN(12) == 0 {
		c.several(r, l)
	} else {
		c.once(r, l, name)
	}
	rest := 30 * time.Millisecond
	if c.order.Calm {
		rest = 500 * time.Millisecond // or the machine would be too busy to be judged
	}
	c.sleep(c.ctx, exponential(r, rest))
}

// burst is many short turns of several goroutines on one lock: it passes on
// inside the process.
func (c *cycle) burst(r *rand.Rand, l *identified, name string) {
	var crowd sync.WaitGroup
	defer crowd.Wait()
	for range 4 {
		own := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		crowd.Go(func() {
			for range 40 {
				ctx, cancel := context.WithTimeout(c.ctx, time.Second)
				h := c.take(ctx, own, l, name, 300*time.Millisecond, mysqllock.AutoRenew)
				cancel()
				if h == nil {
					return
				}
				if own.IntN(20) == 0 {
					h.keep(rand.N(2 * time.Millisecond))
				}
				h.giveBack()
			}
		})
	}
}

// handOn is one burst on a lock after the other, for a time.
func (c *cycle) handOn(name string, seed uint64, d time.Duration) {
	r := rand.New(rand.NewPCG(seed, 0))
	for end := now().add(d); now() < end && c.ctx.Err() == nil; {
		c.burst(r, c.locker.Load(), name)
		c.sleep(c.ctx, time.Millisecond)
	}
}

// run takes short turns, as most are, with little between them.
func (c *cycle) run(r *rand.Rand) {
	for c.ctx.Err() == nil {
		l, name := c.locker.Load(), c.order.Names.pick(r)
		if isContended(name) && r.IntN(2) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(c.ctx, 500*time.Millisecond)
		lease := mysqllock.AutoRenew
		if r.IntN(2) == 0 {
			lease = time.Second
		}
		h := c.take(ctx, r, l, name, 100*time.Millisecond, lease)
		if h != nil {
			h.giveBack()
			c.sleep(c.ctx, time.Millisecond)
		} else {
			c.sleep(c.ctx, 20*time.Millisecond)
		}
		cancel()
	}
}

func (c *cycle) once(r *rand.Rand, l *identified, name string) bool {
	wait := []time.Duration{0, 0, 1 + rand.N(50*time.Millisecond), rand.N(3 * time.Second), mysqllock.WaitForever}[r.IntN(5)]
	lease := mysqllock.AutoRenew
	if r.IntN(2) == 0 {
		lease = 20*time.Millisecond + rand.N(300*time.Millisecond)<<r.IntN(5)
		if !isContended(name) && r.IntN(10) == 0 {
			lease = longestLease // what is left behind will be seen
		}
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	bound := 10 * time.Second
	if wait == mysqllock.WaitForever || r.IntN(4) == 0 {
		bound = time.Duration(1) << (20 + r.IntN(13)) // 1 ms to 4 s
	}
	if c.order.Calm {
		wait, lease, bound = mysqllock.WaitForever, mysqllock.AutoRenew, time.Minute
	}
	defer time.AfterFunc(bound, cancel).Stop()
	if r.IntN(2) == 0 {
		ctx = mysqllock.WithOwner(ctx)
	}

	h := c.take(ctx, r, l, name, wait, lease)
	if h == nil {
		return false
	}
	h.use(lease)
	switch {
	case c.order.Calm:
		h.giveBack()
	case r.IntN(12) == 0:
		h.detach()
	case r.IntN(12) == 0:
		h.giveBackAfter(10*time.Millisecond + rand.N(290*time.Millisecond))
	default:
		h.giveBack()
	}
	return true
}

// take acquires a lock; it returns nil if it did not get it.
func (c *cycle) take(ctx context.Context, r *rand.Rand, l *identified, name string, wait, lease time.Duration) *hold {
	e := event{Holder: l.holder, Name: name, Call: now()}
	k, err := ask(ctx, r, l, &e, wait, lease)
	e.Ret = now()
	if err != nil {
		e.Kind = "wait"
		e.Outcome = c.failed("TryLock", err)
		c.tell(e)
		return nil
	}
	return c.granted(r, l, k, e, lease)
}

// ask requests a lock in one of the modes of its name, or a permit.
func ask(ctx context.Context, r *rand.Rand, l *identified, e *event, wait, lease time.Duration) (*mysqllock.Lock, error) {
	switch {
	case isSemaphore(e.Name):
		e.Mode, e.Limit = permit, limitOf(e.Name)
		if r.IntN(10) == 0 {
			e.Limit = 1 + r.IntN(maxLimit)
		}
		return l.Semaphore(e.Name, e.Limit).TryAcquire(ctx, wait, lease)
	case isReadWrite(e.Name) && r.IntN(4) > 0:
		e.Mode = shared
		return l.TryRLock(ctx, e.Name, wait, lease)
	default:
		return l.TryLock(ctx, e.Name, wait, lease)
	}
}

// granted begins a hold; e has what is known of its grant.
func (c *cycle) granted(r *rand.Rand, l *identified, k *mysqllock.Lock, e event, lease time.Duration) *hold {
	if e.Mode == permit && e.From == "" {
		e.Slot = k.Slot()
		e.Name = slotName(e.Name, e.Slot)
	}
	// A lock that should have become shared stays exclusive if its row was locked, also as a ticket.
	stayed := e.From != "" && e.Mode == shared
	if k.Shared() != (e.Mode == shared) && !stayed || k.Slot() != e.Slot || k.Name() != semaphoreOf(e.Name) || e.Limit > 0 && e.Slot > e.Limit {
		c.wrong(l.holder, e.Name, fmt.Sprintf("shared: %t, slot %d, name %q, of %v", k.Shared(), k.Slot(), k.Name(), e))
	}
	e.Kind, e.Holder, e.Token, e.ID, e.Lease = "grant", l.holder, k.Token(), c.ids.Add(1), lease
	if k.Err() == nil {
		e.Trust = e.Ret
	}
	c.tell(e)
	h := &hold{c: c, l: l, r: r, k: k, event: event{Holder: e.Holder, Name: e.Name, Mode: e.Mode, Slot: e.Slot, Token: e.Token, ID: e.ID}}
	h.watch()
	return h
}

// watch notes when the Context of the handle tells a loss.
func (h *hold) watch() {
	k := h.k
	told := make(chan instant, 1)
	stop := context.AfterFunc(k.Context(), func() { told <- now() })
	h.told = func() (at instant) {
		if stop() {
			return 0
		}
		at = <-told
		if context.Cause(k.Context()) != mysqllock.ErrLost {
			return 0
		}
		h.c.count("losses reported")
		return at
	}
}

// giveBack unlocks, and records how the term ended.
func (h *hold) giveBack() { h.giveBackAfter(0) }

// giveBackAfter unlocks a lock that stays taken for a time since it was acquired.
func (h *hold) giveBackAfter(after time.Duration) {
	c := h.c
	end := h.ending()
	var err error
	if after > 0 {
		err = h.k.UnlockAfter(after)
	} else {
		err = h.k.Unlock()
	}
	end.Ret = now()
	if err == nil && after > 0 {
		end.Lease = after
		c.count("unlocks after a time")
	}
	h.ended(end, err)
	if h.r.IntN(20) == 0 {
		if err := h.k.Unlock(); !errors.Is(err, mysqllock.ErrNotHeld) && !errors.Is(err, mysqllock.ErrClosed) {
			c.wrong(h.l.holder, h.event.Name, fmt.Sprintf("the second Unlock of token %d: %v", end.Token, err))
		}
	}
}

// ending is the event of a term that ends now, as far as it is known.
func (h *hold) ending() event {
	end := h.event
	end.Kind = "end"
	if at := now(); h.k.Err() == nil {
		end.Trust = at
	}
	end.Signal = h.told()
	end.Call = now()
	return end
}

// ended records how a term ended, given the error of Unlock.
func (h *hold) ended(end event, err error) {
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
		c.wrong(h.l.holder, end.Name, fmt.Sprintf("the first Unlock of token %d: %v", end.Token, err))
	default:
		end.Outcome = "unknown"
		c.count("unlocks with an unknown outcome")
	}
	c.tell(end)
}

// wrongStatement are the errors of a statement that no state of the server and its data excuses:
// ambiguous or unknown columns and tables, syntax, more than one row of a subquery.
var wrongStatement = []uint16{1052, 1054, 1064, 1066, 1093, 1109, 1242}

// failed counts why a method failed, and returns it.
func (c *cycle) failed(method string, err error) (why string) {
	var known *mysql.MySQLError
	switch {
	case errors.Is(err, mysqllock.ErrClosed):
		why = "closed"
	case errors.Is(err, mysqllock.ErrLost):
		why = "lost"
	case errors.Is(err, context.Canceled):
		why = "ctx ended"
	case errors.As(err, &known):
		why = fmt.Sprintf("error %d", known.Number)
		if slices.Contains(wrongStatement, known.Number) {
			c.wrong("", "", method+": "+err.Error())
		}
	case errors.Is(err, mysqllock.ErrNotAcquired):
		why = "not acquired"
	case errors.Is(err, mysqllock.ErrUnavailable):
		why = "unavailable"
	default:
		why = "error"
	}
	c.count(method + ": " + why)
	return why
}

// A hold is one handle in use.
type hold struct {
	c     *cycle
	l     *identified
	r     *rand.Rand
	k     *mysqllock.Lock
	event event          // what all of its events have in common
	told  func() instant // when the Context ended with ErrLost, 0 if it did not; called once
}

func (h *hold) tell(kind string, call, ret instant, lease time.Duration) {
	e := h.event
	e.Kind, e.Call, e.Ret, e.Lease = kind, call, ret, lease
	h.c.tell(e)
}

func (h *hold) trusted(at instant) {
	e := h.event
	e.Kind, e.Trust = "trust", at
	h.c.tell(e)
}

// trusts asks Err, and tells a moment before, if it was nil.
func (h *hold) trusts() bool {
	at := now()
	if h.k.Err() != nil {
		return false
	}
	h.trusted(at)
	return true
}

// keep holds the lock for a time, or until it is lost or the cycle ends.
func (h *hold) keep(d time.Duration) {
	for end := now().add(d); now() < end && h.c.ctx.Err() == nil; {
		if !h.trusts() {
			return
		}
		h.c.sleep(h.c.ctx, min(20*time.Millisecond, end.sub(now())))
	}
}

func (h *hold) use(lease time.Duration) {
	c, r := h.c, h.r
	if c.order.Calm {
		c.sleep(c.ctx, rand.N(10*time.Millisecond))
		return
	}
	switch n := r.IntN(100); {
	case n < 15 && isReadWrite(h.event.Name):
		h.change()
	case n < 30 && isReadWrite(h.event.Name):
		h.guarded()
	case n < 50:
	case n < 70:
		h.keep(rand.N(10 * time.Millisecond))
	case n < 72:
		if isContended(h.event.Name) && r.IntN(10) > 0 {
			return // others wait
		}
		h.keep(min(max(lease, c.order.Lease)*3/2, 4*time.Second)) // a fixed lease ends
		h.guarded()
	case n < 84:
		h.guarded()
	case n < 87:
		h.change()
	case n < 90:
		h.register()
	case n < 95:
		h.reenter()
	default:
		h.extend()
	}
}

func (h *hold) reenter() {
	if h.event.Mode == permit {
		return // permits are not re-entrant
	}
	ctx := context.WithoutCancel(h.k.Context())
	lease := mysqllock.AutoRenew
	if h.r.IntN(2) == 0 {
		lease = 10*time.Millisecond + rand.N(time.Second)
	}
	try := h.l.TryLock
	if h.event.Mode == shared {
		try = h.l.TryRLock
	}
	again, err := try(ctx, h.event.Name, 0, lease)
	if err != nil {
		if h.k.Err() == nil {
			h.c.wrong(h.l.holder, h.event.Name, fmt.Sprintf("re-entry of token %d: %v", h.event.Token, err))
		}
		return
	}
	h.c.count("re-entries")
	if again.Token() != h.event.Token {
		h.c.wrong(h.l.holder, h.event.Name, fmt.Sprintf("token %d re-entered with token %d", h.event.Token, again.Token()))
	}
	h.keep(rand.N(5 * time.Millisecond))
	if h.r.IntN(2) == 0 {
		h.k, again = again, h.k
		h.tell("shorten", now(), 0, 0)
	}
	if err := again.Unlock(); err == nil && again.Err() == nil {
		h.c.wrong(h.l.holder, h.event.Name, fmt.Sprintf("token %d: Err is nil after Unlock", h.event.Token))
	}
}

func (h *hold) extend() {
	lease := 10*time.Millisecond + rand.N(3*time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
	call := now()
	if h.k.Extend(ctx, lease) == nil {
		h.tell("extend", call, now(), lease)
		h.c.count("extensions")
	}
	h.keep(rand.N(10 * time.Millisecond))
}
