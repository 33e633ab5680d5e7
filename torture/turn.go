package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mysqllock/mysqllock"
)

// appBound bounds the application's own statements.
const appBound = 3 * time.Second

// turn is one acquisition of a random kind, what is done under it, and its end.
func (c *cycle) turn(r *rand.Rand) {
	l := c.locker.Load()
	name := c.order.Names.pick(r)
	if !c.order.Calm && r.IntN(30) == 0 {
		c.burst(r, l, name)
		return
	}
	c.once(r, l, name)
	c.sleep(c.ctx, exponential(r, 30*time.Millisecond))
}

// burst is many turns one after the other on one lock, as a hot lock sees them.
func (c *cycle) burst(r *rand.Rand, l *identified, name string) {
	for range 10 + r.IntN(30) {
		if c.ctx.Err() != nil || !c.once(r, l, name) {
			return
		}
	}
}

func (c *cycle) once(r *rand.Rand, l *identified, name string) bool {
	wait := []time.Duration{0, 0, 1 + rand.N(50*time.Millisecond), rand.N(3 * time.Second), mysqllock.WaitForever}[r.IntN(5)]
	lease := mysqllock.AutoRenew
	if r.IntN(2) == 0 {
		lease = 20*time.Millisecond + rand.N(300*time.Millisecond)<<r.IntN(5)
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

	call := now()
	k, err := l.TryLock(ctx, name, wait, lease)
	ret := now()
	if err != nil {
		c.refused(err, event{Kind: "wait", Holder: l.holder, Name: name, Call: call, Ret: ret})
		return false
	}
	h := &hold{c: c, l: l, r: r, k: k, event: event{Holder: l.holder, Name: name, Token: k.Token()}}
	h.tell("grant", call, ret, lease)
	told := make(chan instant, 1)
	stop := context.AfterFunc(k.Context(), func() { told <- now() })
	h.trusts()
	h.use(lease)
	h.trusts()
	end := h.event
	end.Kind = "term"
	if stop() {
		// Not told of anything.
	} else if at := <-told; context.Cause(k.Context()) == mysqllock.ErrLost {
		end.Signal = at
		c.count("losses told")
	}
	end.Call = now()
	err = h.k.Unlock()
	end.Ret = now()
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
		c.wrong(l.holder, name, fmt.Sprintf("the first Unlock of token %d: %v", k.Token(), err))
	default:
		end.Outcome = "unknown"
		c.count("unlocks with an unknown outcome")
	}
	c.tell(end)
	if r.IntN(20) == 0 {
		if err := h.k.Unlock(); !errors.Is(err, mysqllock.ErrNotHeld) && !errors.Is(err, mysqllock.ErrClosed) {
			c.wrong(l.holder, name, fmt.Sprintf("the second Unlock of token %d: %v", k.Token(), err))
		}
	}
	return true
}

// refused counts why TryLock failed.
func (c *cycle) refused(err error, e event) {
	var known *mysql.MySQLError
	switch {
	case errors.Is(err, mysqllock.ErrClosed):
		e.Outcome = "closed"
	case errors.Is(err, context.Canceled):
		e.Outcome = "ctx ended"
	case errors.As(err, &known):
		e.Outcome = fmt.Sprintf("error %d", known.Number)
	case errors.Is(err, mysqllock.ErrNotAcquired):
		e.Outcome = "not acquired"
	default:
		e.Outcome = "error"
	}
	c.tell(e)
	c.count("TryLock: " + e.Outcome)
}

// A hold is one handle in use.
type hold struct {
	c     *cycle
	l     *identified
	r     *rand.Rand
	k     *mysqllock.Lock
	event event
}

func (h *hold) tell(kind string, call, ret instant, lease time.Duration) {
	e := h.event
	e.Kind, e.Call, e.Ret, e.Lease = kind, call, ret, lease
	h.c.tell(e)
}

// trusts asks Err, and tells a moment before, if it was nil.
func (h *hold) trusts() bool {
	at := now()
	if h.k.Err() != nil {
		return false
	}
	h.tell("trust", at, 0, 0)
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
	case n < 50:
	case n < 70:
		h.keep(rand.N(10 * time.Millisecond))
	case n < 72:
		h.keep(min(max(lease, c.order.Lease)*3/2, 4*time.Second)) // a fixed lease ends
	case n < 82:
		h.guarded()
	case n < 90:
		h.register()
	case n < 95:
		h.reenter()
	default:
		h.extend()
	}
}

func (h *hold) reenter() {
	ctx := context.WithoutCancel(h.k.Context())
	lease := mysqllock.AutoRenew
	if h.r.IntN(2) == 0 {
		lease = 10*time.Millisecond + rand.N(time.Second)
	}
	again, err := h.l.TryLock(ctx, h.event.Name, 0, lease)
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

// rejected tells that the database refused the token while Err says nil.
func (h *hold) rejected(by string) {
	h.c.count("refused by the " + by)
	at := now()
	if h.k.Err() == nil {
		h.tell("trust", at, 0, 0)
		h.c.count("refused by the " + by + ", not told yet")
	}
}

// register writes to the fenced register, as a resource that knows the token
// alone would be written to.
func (h *hold) register() {
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
	tx, err := h.c.db.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer tx.Rollback()
	name, token := h.event.Name, h.event.Token
	res, err := tx.ExecContext(ctx, "UPDATE register SET token = ?, writes = writes + 1 WHERE name = ? AND token <= ?", token, name, token)
	if err != nil {
		return
	}
	if n, err := res.RowsAffected(); err != nil {
		return
	} else if n == 0 {
		h.rejected("register")
		return
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO register_log (name, token) VALUES (?, ?)", name, token); err != nil {
		return
	}
	if tx.Commit() == nil {
		h.c.count("register writes")
	}
}

// guarded adds one to the guarded row, reading it without a lock: nothing but
// Guard keeps two of these apart.
func (h *hold) guarded() {
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
	tx, err := h.c.db.BeginTx(ctx, nil)
	if err != nil {
		return
	}
	defer tx.Rollback()
	name, token := h.event.Name, h.event.Token
	if err := h.k.Guard(ctx, tx); err != nil {
		if errors.Is(err, mysqllock.ErrLost) {
			h.rejected("guard")
		}
		return
	}
	var value uint64
	if err := tx.QueryRowContext(ctx, "SELECT value FROM guarded WHERE name = ?", name).Scan(&value); err != nil {
		return
	}
	switch h.r.IntN(20) {
	case 0:
		h.c.sleep(ctx, rand.N(2*time.Second)) // maybe longer than the lease
	case 1, 2, 3, 4:
		h.c.sleep(ctx, rand.N(5*time.Millisecond))
	}
	if _, err := tx.ExecContext(ctx, "UPDATE guarded SET value = ? WHERE name = ?", value+1, name); err != nil {
		return
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO guarded_log (name, token, value) VALUES (?, ?, ?)", name, token, value+1); err != nil {
		return
	}
	if err := tx.Commit(); err == nil {
		h.c.count("guarded commits")
	} else if strings.Contains(err.Error(), "1213") {
		h.c.count("deadlocks in guarded transactions")
	}
}
