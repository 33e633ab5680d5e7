package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mysqllock/mysqllock"
)

// detach ends the hold by Detach, and has the ticket attached by this client, other clients, or
// another worker.
func (h *hold) detach() {
	c, lease := h.c, 10*time.Millisecond+rand.N(time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	h.record("shorten", now(), 0, 0) // from now on, the lease may be that of the ticket
	end := h.endEvent()
	t, err := h.lock.Detach(ctx, lease)
	end.Ret = now()
	if err != nil {
		c.countError("Detach", err)
		unlockErr := h.lock.Unlock()
		if errors.Is(unlockErr, mysqllock.ErrNotHeld) { // Detach has ended the handle
			unlockErr = err
		}
		if end.Ret = now(); errors.Is(err, mysqllock.ErrLost) {
			unlockErr = err
		}
		h.recordEnd(end, unlockErr)
		return
	}
	end.Outcome, end.Lease = "detached", lease
	c.record(end)
	c.count("detached")
	ticket := h.event
	ticket.Kind, ticket.From, ticket.Ticket = "ticket", h.event.key(), string(t)
	switch h.r.IntN(4) {
	case 0: // another client, or two clients at the same time
		r := rand.New(rand.NewPCG(h.r.Uint64(), 0))
		c.clients.Go(func() { c.attach(r, ticket) })
		if h.r.IntN(4) == 0 {
			c.attach(h.r, ticket)
		}
	case 1: // later
		c.sleep(c.ctx, rand.N(lease))
		c.attach(h.r, ticket)
	case 2: // another worker
		c.record(ticket)
	default:
		c.attach(h.r, ticket)
	}
}

// attach attaches a ticket, and uses and unlocks the lock.
func (c *cycle) attach(r *rand.Rand, ticket event) {
	l, lease := c.locker.Load(), mysqllock.AutoRenew
	if r.IntN(2) == 0 {
		lease = 20*time.Millisecond + rand.N(time.Second)
	}
	ctx, cancel := context.WithTimeout(context.Background(), statementTimeout)
	defer cancel()
	e := event{Holder: l.holder, Name: ticket.Name, Mode: ticket.Mode, Slot: ticket.Slot, From: ticket.From, Call: now()}
	lock, err := l.Attach(ctx, mysqllock.Ticket(ticket.Ticket), lease)
	e.Ret = now()
	if err != nil {
		e.Kind, e.Outcome, e.Lease = "refused", c.countError("Attach", err), lease
		c.record(e)
		return
	}
	c.count("attached")
	if lock.Token() != ticket.Token {
		c.recordWrong(l.holder, e.Name, fmt.Sprintf("token %d attached with token %d", ticket.Token, lock.Token()))
	}
	h := c.beginHold(r, l, lock, e, lease)
	h.use(lease)
	if r.IntN(8) == 0 {
		h.unlockAfter(10*time.Millisecond + rand.N(290*time.Millisecond))
	} else {
		h.unlock()
	}
}
