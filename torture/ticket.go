package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mysqllock/mysqllock"
)

// detach gives the hold away, by a ticket.
func (h *hold) detach() {
	c, length := h.c, 10*time.Millisecond+rand.N(time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
	h.tell("shorten", now(), 0, 0) // from now on, the lease may be that of the ticket
	end := h.ending()
	t, err := h.k.Detach(ctx, length)
	end.Ret = now()
	if err != nil {
		c.failed("Detach", err)
		unlockErr := h.k.Unlock()
		if errors.Is(unlockErr, mysqllock.ErrNotHeld) { // Detach has ended the handle
			unlockErr = err
		}
		if end.Ret = now(); errors.Is(err, mysqllock.ErrLost) {
			unlockErr = err
		}
		h.ended(end, unlockErr)
		return
	}
	end.Outcome, end.Lease = "detached", length
	c.tell(end)
	c.count("detached")
	ticket := h.event
	ticket.Kind, ticket.From, ticket.Ticket = "ticket", h.event.key(), string(t)
	switch h.r.IntN(4) {
	case 0: // to another goroutine, or to two
		other := rand.New(rand.NewPCG(h.r.Uint64(), 0))
		c.turns.Go(func() { c.receive(other, ticket) })
		if h.r.IntN(4) == 0 {
			c.receive(h.r, ticket)
		}
	case 1:
		c.sleep(c.ctx, rand.N(length))
		c.receive(h.r, ticket)
	case 2: // to another worker
		c.tell(ticket)
	default:
		c.receive(h.r, ticket)
	}
}

// receive makes the hold of a ticket a handle again, and uses it.
func (c *cycle) receive(r *rand.Rand, ticket event) {
	l, lease := c.locker.Load(), mysqllock.AutoRenew
	if r.IntN(2) == 0 {
		lease = 20*time.Millisecond + rand.N(time.Second)
	}
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
	e := event{Holder: l.holder, Name: ticket.Name, Mode: ticket.Mode, Slot: ticket.Slot, From: ticket.From, Call: now()}
	k, err := l.Attach(ctx, mysqllock.Ticket(ticket.Ticket), lease)
	e.Ret = now()
	if err != nil {
		e.Kind, e.Outcome, e.Lease = "refused", c.failed("Attach", err), lease
		c.tell(e)
		return
	}
	c.count("attached")
	if k.Token() != ticket.Token {
		c.wrong(l.holder, e.Name, fmt.Sprintf("token %d attached with token %d", ticket.Token, k.Token()))
	}
	h := c.granted(r, l, k, e, lease)
	h.use(lease)
	if r.IntN(8) == 0 {
		h.giveBackAfter(10*time.Millisecond + rand.N(290*time.Millisecond))
	} else {
		h.giveBack()
	}
}
