package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mysqllock/mysqllock"
)

// A holding is what COMMAND runs under: a lock, a permit, or several locks.
type holding struct {
	locks  []*mysqllock.Lock
	ctx    context.Context // ends when one of them is lost
	unlock func() error
}

// try acquires what the flags ask for.
func (r *runner) try(ctx context.Context, l *mysqllock.Locker) (*holding, error) {
	if len(r.names) > 1 {
		set, err := l.TryLockAll(ctx, r.names, r.wait.Duration, r.lease.fixed)
		if err != nil {
			return nil, err
		}
		h := &holding{ctx: set.Context(), unlock: set.Unlock}
		for _, name := range r.names {
			if k := set.Lock(name); !slices.Contains(h.locks, k) { // a name may stand there twice
				h.locks = append(h.locks, k)
			}
		}
		return h, nil
	}
	var k *mysqllock.Lock
	var err error
	switch name := r.names[0]; {
	case r.slots > 0:
		k, err = l.Semaphore(name, r.slots).TryAcquire(ctx, r.wait.Duration, r.lease.fixed)
	case r.shared:
		k, err = l.TryRLock(ctx, name, r.wait.Duration, r.lease.fixed)
	default:
		k, err = l.TryLock(ctx, name, r.wait.Duration, r.lease.fixed)
	}
	if err != nil {
		return nil, err
	}
	return &holding{[]*mysqllock.Lock{k}, k.Context(), k.Unlock}, nil
}

// what names that for people.
func (r *runner) what() string {
	switch {
	case len(r.names) > 1:
		names := make([]string, len(r.names))
		for i, name := range r.names {
			names[i] = shown(name)
		}
		return "the set of locks " + strings.Join(names, ", ")
	case r.slots > 0:
		return "the permit of " + shown(r.names[0])
	}
	return "the lock " + shown(r.names[0])
}

// environment returns the variables that COMMAND gets. Names contain no line breaks.
func (h *holding) environment() []string {
	var names, tokens []string
	for _, k := range h.locks {
		names, tokens = append(names, k.Name()), append(tokens, strconv.FormatUint(k.Token(), 10))
	}
	env := []string{"MYSQLLOCK_NAME=" + strings.Join(names, "\n"), "MYSQLLOCK_TOKEN=" + strings.Join(tokens, "\n")}
	if slot := h.locks[0].Slot(); slot > 0 {
		env = append(env, "MYSQLLOCK_SLOT="+strconv.Itoa(slot))
	}
	return env
}

// unlockAfter gives everything back, at the earliest when it was held for that long.
func (h *holding) unlockAfter(held time.Duration) error {
	if held == 0 {
		return h.unlock()
	}
	errs := make([]error, len(h.locks))
	for i, k := range h.locks {
		errs[i] = k.UnlockAfter(held)
	}
	return errors.Join(errs...)
}

// A target is what an operator asks about: a lock, a semaphore, or one of its permits.
type target struct {
	name      string
	semaphore bool
	slot      int // 0 for all of a semaphore
}

func (t target) String() string {
	switch {
	case t.slot > 0:
		return fmt.Sprintf("permit %d of %s", t.slot, shown(t.name))
	case t.semaphore:
		return "the semaphore " + shown(t.name)
	}
	return shown(t.name)
}

// inspect returns the state of a lock, with the holders of a shared one in the order in which
// they acquired it.
func inspect(ctx context.Context, l *mysqllock.Locker, name string) (mysqllock.Info, error) {
	i, err := l.Inspect(ctx, name)
	slices.SortStableFunc(i.Holders, func(a, b mysqllock.Info) int { return a.AcquiredAt.Compare(b.AcquiredAt) })
	return i, err
}

// holders returns one Info for each process that holds it, and for each permit.
func (t target) holders(ctx context.Context, l *mysqllock.Locker) ([]mysqllock.Info, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if t.semaphore {
		permits, err := l.Semaphore(t.name, 1).Holders(ctx)
		return slices.DeleteFunc(permits, func(i mysqllock.Info) bool { return t.slot > 0 && i.Slot != t.slot }), err
	}
	i, err := inspect(ctx, l, t.name)
	switch {
	case err != nil || !i.Held:
		return nil, err
	case i.Shared:
		return i.Holders, nil
	}
	return []mysqllock.Info{i}, nil
}

// free takes it away from its holders, and reports whether it had any.
func (t target) free(ctx context.Context, l *mysqllock.Locker) (bool, error) {
	switch s := l.Semaphore(t.name, 1); {
	case t.slot > 0:
		return s.ForceUnlockSlot(ctx, t.slot)
	case t.semaphore:
		return s.ForceUnlock(ctx)
	}
	return l.ForceUnlock(ctx, t.name)
}

// kept reports whether a lock is unlocked, and its name stays taken: --at-least, UnlockAfter.
func kept(i mysqllock.Info) bool { return strings.HasPrefix(i.Owner, "+") }

// listed describes holders in a line, the first few of many.
func listed(holders []mysqllock.Info) string {
	const most = 3
	var parts []string
	for _, i := range holders[:min(len(holders), most)] {
		part := fmt.Sprintf("%s since %s", shown(i.Holder), i.AcquiredAt.Format("2006-01-02 15:04:05Z"))
		if kept(i) {
			part += i.ExpiresAt.Format(", kept until 2006-01-02 15:04:05Z")
		}
		parts = append(parts, part)
	}
	if more := len(holders) - most; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return strings.Join(parts, ", ")
}
