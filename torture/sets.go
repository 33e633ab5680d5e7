package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/mysqllock/mysqllock"
)

// lockSet acquires a few locks by TryLockAll, uses one of them, and unlocks all.
func (c *cycle) lockSet(r *rand.Rand, l *identifiedLocker) {
	var names []string
	for range 2 + r.IntN(3) {
		names = append(names, c.order.Names.pickLock(r)) // in any order; one may occur twice
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
		c.countError("TryLockAll", err)
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
		lock := set.Lock(name)
		if lock == nil {
			c.recordWrong(l.holder, name, "not in the set")
			continue
		}
		e.Name = name
		holds = append(holds, c.beginHold(r, l, lock, e, lease))
	}
	if at := now(); set.Err() == nil {
		for _, h := range holds {
			h.recordTrust(at)
		}
	}
	one := holds[r.IntN(len(holds))]
	switch r.IntN(4) {
	case 0:
		one.writeGuarded()
	case 1:
		one.keep(rand.N(50 * time.Millisecond))
	}
	for len(holds) > 0 && r.IntN(4) == 0 {
		holds[0].unlock()
		holds = holds[1:]
	}
	ends := make([]event, len(holds))
	for i, h := range holds {
		ends[i] = h.endEvent()
	}
	err = set.Unlock()
	if errors.Is(err, mysqllock.ErrNotHeld) {
		c.recordWrong(l.holder, names[0], fmt.Sprintf("the first Unlock of a set: %v", err))
	}
	for i, h := range holds {
		ends[i].Ret = now()
		switch {
		case err == nil:
			h.recordEnd(ends[i], nil)
		default: // the error does not report which locks it concerns
			ends[i].Outcome = "closed"
			c.record(ends[i])
		}
	}
}
