package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mysqllock/mysqllock"
)

// change changes the mode of a hold, as far as its name has two.
func (h *hold) change() {
	switch {
	case !isReadWrite(h.event.Name):
	case h.event.Mode == shared:
		h.upgrade()
	default:
		h.downgrade()
	}
}

// upgrade asks for a lock exclusively that its owner holds shared, which must be refused.
func (h *hold) upgrade() {
	again, err := h.l.TryLock(context.WithoutCancel(h.k.Context()), h.event.Name, mysqllock.WaitForever, mysqllock.AutoRenew)
	switch {
	case err == nil:
		h.c.wrong(h.l.holder, h.event.Name, fmt.Sprintf("token %d, held shared, was granted exclusively", h.event.Token))
		again.Unlock()
	case errors.Is(err, mysqllock.ErrUpgrade):
		h.c.count("upgrades refused")
	case h.k.Err() == nil:
		h.c.wrong(h.l.holder, h.event.Name, fmt.Sprintf("upgrade of token %d: %v", h.event.Token, err))
	}
}

// downgrade unlocks the exclusive handle of a hold before a shared one.
func (h *hold) downgrade() {
	lease := mysqllock.AutoRenew
	if h.r.IntN(2) == 0 {
		lease = 20*time.Millisecond + rand.N(time.Second)
	}
	again, err := h.l.TryRLock(context.WithoutCancel(h.k.Context()), h.event.Name, 0, lease)
	if err != nil {
		if h.k.Err() == nil {
			h.c.wrong(h.l.holder, h.event.Name, fmt.Sprintf("shared re-entry of token %d: %v", h.event.Token, err))
		}
		return
	}
	if !again.Shared() || again.Token() != h.event.Token {
		h.c.wrong(h.l.holder, h.event.Name, fmt.Sprintf("shared re-entry of token %d: shared %t, token %d", h.event.Token, again.Shared(), again.Token()))
	}
	end, exclusive := h.ending(), h.k
	h.k = again
	h.watch() // its Context may end while the downgrade lasts
	err = exclusive.Unlock()
	end.Ret = now()
	if err != nil { // the hold is lost, for both handles
		h.tell("shorten", now(), 0, 0)
		return
	}
	end.Outcome = "downgraded"
	h.c.tell(end)
	h.c.count("downgrades")
	grant := event{Kind: "grant", Holder: end.Holder, Name: end.Name, Mode: shared, Token: end.Token, ID: h.c.ids.Add(1), From: end.key(), Call: end.Call, Ret: now(), Lease: lease}
	h.event.Mode, h.event.ID = shared, grant.ID
	h.c.tell(grant)
	h.keep(rand.N(10 * time.Millisecond))
	if h.r.IntN(2) == 0 {
		h.guarded()
	}
}

// look reads what operators see.
func (c *cycle) look(ctx context.Context, r *rand.Rand, l *identified) {
	name := c.order.Names.pick(r)
	l.Inspect(ctx, name)
	l.List(ctx)
	if !isSemaphore(name) {
		return
	}
	infos, err := l.Semaphore(name, limitOf(name)).Holders(ctx)
	slots := map[int]bool{}
	for _, i := range infos {
		if err == nil && (slots[i.Slot] || i.Slot < 1 || i.Slot > maxLimit || i.Name != name || !i.Held) {
			c.wrong(l.holder, name, fmt.Sprintf("Holders: %+v", infos))
			return
		}
		slots[i.Slot] = true
	}
}
