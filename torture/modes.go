package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mysqllock/mysqllock"
)

// change changes the mode of a hold, as far as its name has two.
func (h *hold) change() {
	switch {
	case !isRW(h.event.Name):
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
	end := h.ending()
	err = h.k.Unlock()
	end.Ret = now()
	h.k = again
	h.watch()
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

// guardedRead reads the guarded row twice, without a lock: nothing but Guard keeps those
// from changing it who hold the name exclusively.
func (h *hold) guardedRead() {
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
	tx, err := h.c.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
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
	var first, second uint64
	if err := tx.QueryRowContext(ctx, "SELECT value FROM guarded WHERE name = ?", name).Scan(&first); err != nil {
		return
	}
	switch n := h.r.IntN(100); {
	case n < 2:
		h.c.sleep(ctx, rand.N(2*time.Second)) // maybe longer than the lease
	case n < 40:
		h.c.sleep(ctx, rand.N(5*time.Millisecond))
	}
	if err := tx.QueryRowContext(ctx, "SELECT value FROM guarded WHERE name = ?", name).Scan(&second); err != nil {
		return
	}
	if first != second {
		h.c.wrong(h.l.holder, name, fmt.Sprintf("guarded under token %d, shared: read %d, and then %d", token, first, second))
	}
	h.c.count("guarded reads")
	if h.r.IntN(2) == 0 {
		return
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO guarded_log (name, token, value, is_read) VALUES (?, ?, ?, 1)", name, token, second); err == nil {
		tx.Commit()
	}
}

// look reads what operators see.
func (c *cycle) look(ctx context.Context, r *rand.Rand, l *identified) {
	name := c.order.Names.pick(r)
	l.Inspect(ctx, name)
	l.List(ctx)
	if !isSem(name) {
		return
	}
	infos, err := l.Semaphore(name, limitOf(name)).Holders(ctx)
	slots := map[int]bool{}
	for _, i := range infos {
		if err == nil && (slots[i.Slot] || i.Slot < 1 || i.Slot > mostPermits || i.Name != name || !i.Held) {
			c.wrong(l.holder, name, fmt.Sprintf("Holders: %+v", infos))
			return
		}
		slots[i.Slot] = true
	}
}

// several acquires a few locks by TryLockAll.
func (c *cycle) several(r *rand.Rand, l *identified) {
	var names []string
	for range 2 + r.IntN(3) {
		names = append(names, c.order.Names.pickLock(r)) // in any order, perhaps one twice
	}
	wait := []time.Duration{0, rand.N(50 * time.Millisecond), rand.N(2 * time.Second), mysqllock.WaitForever}[r.IntN(4)]
	lease := mysqllock.AutoRenew
	if r.IntN(2) == 0 {
		lease = 50*time.Millisecond + rand.N(2*time.Second)
	}
	ctx, cancel := context.WithTimeout(c.ctx, rand.N(4*time.Second))
	defer cancel()
	e := event{Holder: l.holder, Call: now()}
	set, err := l.TryLockAll(ctx, names, wait, lease)
	e.Ret = now()
	if err != nil {
		c.failed("TryLockAll", err)
		return
	}
	c.count("sets acquired")
	var holds []*hold
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			continue
		}
		seen[name] = true
		k := set.Lock(name)
		if k == nil {
			c.wrong(l.holder, name, "not in the set")
			continue
		}
		e.Name = name
		holds = append(holds, c.granted(r, l, k, e, lease))
	}
	if at := now(); set.Err() == nil {
		for _, h := range holds {
			h.trusted(at)
		}
	}
	one := holds[r.IntN(len(holds))]
	switch r.IntN(4) {
	case 0:
		one.guarded()
	case 1:
		one.keep(rand.N(50 * time.Millisecond))
	}
	for len(holds) > 0 && r.IntN(4) == 0 {
		holds[0].giveBack()
		holds = holds[1:]
	}
	ends := make([]event, len(holds))
	for i, h := range holds {
		ends[i] = h.ending()
	}
	err = set.Unlock()
	if errors.Is(err, mysqllock.ErrNotHeld) {
		c.wrong(l.holder, names[0], fmt.Sprintf("the first Unlock of a set: %v", err))
	}
	for i, h := range holds {
		ends[i].Ret = now()
		switch {
		case err == nil:
			h.ended(ends[i], nil)
		default: // of one of them; of which is unknown here
			ends[i].Outcome = "closed"
			c.tell(ends[i])
		}
	}
}

// detach gives the hold away, by a ticket.
func (h *hold) detach() {
	c, length := h.c, 10*time.Millisecond+rand.N(time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), appBound)
	defer cancel()
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
