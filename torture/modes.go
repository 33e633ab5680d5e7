package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mysqllock/mysqllock"
)

// changeMode tries an upgrade of a shared hold, or a downgrade of an exclusive one, if the name has
// two modes.
func (h *hold) changeMode() {
	switch {
	case !isReadWrite(h.event.Name):
	case h.event.Mode == shared:
		h.upgrade()
	default:
		h.downgrade()
	}
}

// upgrade requests a lock exclusively that its owner holds shared, which must be refused.
func (h *hold) upgrade() {
	exclusive, err := h.locker.TryLock(context.WithoutCancel(h.lock.Context()), h.event.Name, mysqllock.WaitForever, mysqllock.AutoRenew)
	switch {
	case err == nil:
		h.recordWrong(fmt.Sprintf("token %d, held shared, was granted exclusively", h.event.Token))
		exclusive.Unlock()
	case errors.Is(err, mysqllock.ErrUpgrade):
		h.c.count("upgrades refused")
	case h.lock.Err() == nil:
		h.recordWrong(fmt.Sprintf("upgrade of token %d: %v", h.event.Token, err))
	}
}

// downgrade re-enters an exclusive lock in shared mode, and unlocks the exclusive handle.
func (h *hold) downgrade() {
	lease := mysqllock.AutoRenew
	if h.r.IntN(2) == 0 {
		lease = 20*time.Millisecond + rand.N(time.Second)
	}
	reader, err := h.locker.TryRLock(context.WithoutCancel(h.lock.Context()), h.event.Name, 0, lease)
	if err != nil {
		if h.lock.Err() == nil {
			h.recordWrong(fmt.Sprintf("shared re-entry of token %d: %v", h.event.Token, err))
		}
		return
	}
	if !reader.Shared() || reader.Token() != h.event.Token {
		h.recordWrong(fmt.Sprintf("shared re-entry of token %d: shared %t, token %d", h.event.Token, reader.Shared(), reader.Token()))
	}
	end, exclusive := h.endEvent(), h.lock
	h.lock = reader
	h.watchContext() // before Unlock: the Context may end during the downgrade
	err = exclusive.Unlock()
	end.Ret = now()
	if err != nil { // both handles have lost the lock
		h.record("shorten", now(), 0, 0)
		return
	}
	end.Outcome = "downgraded"
	h.c.record(end)
	h.c.count("downgrades")
	grant := event{Kind: "grant", Holder: end.Holder, Name: end.Name, Mode: shared, Token: end.Token, ID: h.c.holds.Add(1), From: end.key(), Call: end.Call, Ret: now(), Lease: lease}
	h.event.Mode, h.event.ID = shared, grant.ID
	h.c.record(grant)
	h.keep(rand.N(10 * time.Millisecond))
	if h.r.IntN(2) == 0 {
		h.writeGuarded()
	}
}
