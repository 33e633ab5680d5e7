package mysqllock

import (
	"context"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// TryRLock acquires the lock called name in shared mode: any number of owners can hold it at the
// same time, but not while another owner holds it exclusively, by [Locker.TryLock]. wait, lease,
// ctx and the errors are those of TryLock.
//
// Requests of both modes are served in order of arrival: an exclusive request holds back the
// shared ones that arrive after it. An owner that holds the lock, in either mode, re-enters it; if
// it unlocks its exclusive handles first, the lock becomes shared without being free in between.
// An owner that holds it shared cannot acquire it exclusively (see [ErrUpgrade]).
//
// The first shared hold of a process costs two statements. While no exclusive request waits,
// further ones begin at once and cost none, apart from a check for such requests, at most every
// 50 ms.
func (l *Locker) TryRLock(ctx context.Context, name string, wait, lease time.Duration) (*Lock, error) {
	return l.acquire(ctx, request{name: name, mode: store.Shared, wait: wait, lease: lease})
}

// RLock is TryRLock with [WaitForever], and returns its errors.
func (l *Locker) RLock(ctx context.Context, name string, lease time.Duration) (*Lock, error) {
	return l.TryRLock(ctx, name, WaitForever, lease)
}

// Shared reports whether the handle was acquired by TryRLock or RLock.
func (k *Lock) Shared() bool { return k.shared }
