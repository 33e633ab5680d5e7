package mysqllock

import (
	"context"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A Semaphore limits how many permits are held at the same time, across all processes. It is
// independent of the lock of the same name. It is safe for concurrent use, and needs no Close.
type Semaphore struct {
	locker *Locker
	name   string
	limit  int
}

// Semaphore returns the semaphore called name, with a limit of 1 to 10,000 permits. It sends no
// statement.
//
// The limit belongs to the caller and is not stored. If processes disagree about it, each is
// refused a permit while as many are held as its own limit allows.
func (l *Locker) Semaphore(name string, limit int) *Semaphore {
	return &Semaphore{locker: l, name: name, limit: limit}
}

// TryAcquire acquires a permit: a lock on one slot, whose number no other permit of the
// semaphore has while this one is held (see [Lock.Slot]). wait, lease, ctx and the errors are
// those of [Locker.TryLock]; TryAcquire also returns [ErrInvalidLimit]. Waiters are served in
// order of arrival. Permits are not re-entrant: each call acquires another one, even if its owner
// holds one already.
//
// It costs two statements while permits are free.
func (s *Semaphore) TryAcquire(ctx context.Context, wait, lease time.Duration) (*Lock, error) {
	return s.locker.acquire(ctx, request{name: s.name, mode: store.Permit, limit: s.limit, wait: wait, lease: lease})
}

// Acquire is TryAcquire with [WaitForever], and returns its errors.
func (s *Semaphore) Acquire(ctx context.Context, lease time.Duration) (*Lock, error) {
	return s.TryAcquire(ctx, WaitForever, lease)
}

// Slot returns the number of the slot that a permit of a [Semaphore] holds, from 1 to the limit. It
// returns 0 for other locks. Tokens rise from one holder of a slot to the next.
func (k *Lock) Slot() int { return store.SlotOf(k.hold.lease.Load().Claim.Name) }

// Holders returns one Info for each permit that is held, in order of slots. It blocks for one
// round trip. It returns [ErrInvalidName], [ErrNoTable], [ErrClosed], or the error of ctx or the
// database.
func (s *Semaphore) Holders(ctx context.Context) (infos []Info, err error) {
	l := s.locker
	err = l.admin(func() error {
		if err := checkName(s.name); err != nil {
			return err
		}
		found, err := l.table.Permits(ctx, s.name)
		infos = infosOf(found)
		return err
	})
	return infos, opError("holders", s.name, err)
}

// ForceUnlock takes away all permits that are held, whatever the limit of s, and reports whether
// it freed any. Like [Locker.ForceUnlock], it notifies the holders, waits for their transactions
// under Guard, and returns the same errors. After an error, some of the permits may have been
// freed.
func (s *Semaphore) ForceUnlock(ctx context.Context) (held bool, err error) {
	permits, err := s.Holders(ctx)
	for _, permit := range permits {
		freed, err := s.ForceUnlockSlot(ctx, permit.Slot)
		if err != nil {
			return false, err
		}
		held = held || freed
	}
	return held, err
}

// ForceUnlockSlot is ForceUnlock for one permit. It returns [ErrInvalidLimit] if slot is not 1 to
// 10,000.
func (s *Semaphore) ForceUnlockSlot(ctx context.Context, slot int) (held bool, err error) {
	err = checkName(s.name)
	switch {
	case err != nil:
	case slot < 1 || slot > store.MaxPermits:
		err = fmt.Errorf("%w: slot %d; want 1 to %d", ErrInvalidLimit, slot, store.MaxPermits)
	default:
		held, err = s.locker.force(ctx, store.SlotKey(s.name, slot))
	}
	return held, opError("force unlock", s.name, err)
}
