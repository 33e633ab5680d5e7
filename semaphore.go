package mysqllock

import (
	"context"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A Semaphore limits how many permits are held at the same time, in all processes. Its name has
// nothing to do with the lock of that name. It is safe for concurrent use, and needs no Close.
type Semaphore struct {
	locker *Locker
	name   string
	limit  int
}

// Semaphore returns the semaphore name with a limit of 1 to 10,000 permits. It sends nothing.
//
// The limit is the caller's: if processes disagree, each gets no permit while as many as its own
// limit are held.
func (l *Locker) Semaphore(name string, limit int) *Semaphore {
	return &Semaphore{locker: l, name: name, limit: limit}
}

// TryAcquire acquires a permit: a lock on one slot, whose number no other permit of the
// semaphore has while it is held (see [Lock.Slot]). wait, lease, ctx and the errors are those of
// [Locker.TryLock]; TryAcquire also returns [ErrInvalidLimit]. Waiters are served in order of
// arrival. Permits are not re-entrant: each call acquires another one, whatever its owner holds.
//
// It costs two statements while permits are free.
func (s *Semaphore) TryAcquire(ctx context.Context, wait, lease time.Duration) (*Lock, error) {
	return s.locker.acquire(ctx, request{name: s.name, mode: store.Permit, limit: s.limit, wait: wait, lease: lease})
}

// Acquire is TryAcquire with [WaitForever].
func (s *Semaphore) Acquire(ctx context.Context, lease time.Duration) (*Lock, error) {
	return s.TryAcquire(ctx, WaitForever, lease)
}

// Slot returns which permit of a [Semaphore] the lock is, from 1 to the limit, and 0 for other
// locks. Tokens rise from holder to holder of a slot.
func (k *Lock) Slot() int { return store.SlotOf(k.hold.lease.Load().Claim.Name) }

// Holders returns one Info for each permit that is held, in order of slots. It blocks for one
// round trip. It returns [ErrInvalidName], [ErrNoTable], [ErrClosed], or the error of ctx or the
// database.
func (s *Semaphore) Holders(ctx context.Context) (infos []Info, err error) {
	l := s.locker
	err = l.admin(func() (err error) {
		if err = checkName(s.name); err == nil {
			found, err := l.table.Permits(ctx, s.name)
			infos = infosOf(found)
			return err
		}
		return err
	})
	if err != nil {
		return nil, opError("holders", s.name, err)
	}
	return infos, nil
}
