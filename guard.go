package mysqllock

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"time"

	"github.com/mysqllock/mysqllock/internal/lease"
	"github.com/mysqllock/mysqllock/internal/store"
)

// A Queryer is an open transaction: a [*sql.Tx], a *sqlx.Tx, the [*sql.Conn] on which the
// transaction was begun, or a wrapper of one of these.
type Queryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Guard puts the caller's transaction under the lock. If it returns nil, no other owner can take
// over the lock until tx ends, even if the lease expires, this process crashes or the lock is
// unlocked. So a stale holder never commits a transaction under Guard. tx must run on the server
// that has the Locker's table. Guard does not delay renewals, and tx may last longer than the
// lease.
//
// Guard blocks for one round trip, or three if tx is not a [*sql.Tx] or *sqlx.Tx, and for up to
// 1 s more while a [Locker.ForceUnlock] waits. It returns [ErrLost] if the lock has another owner;
// the hold is then lost, and its Context has ended. It also returns [ErrNotHeld], [ErrClosed], an
// error if tx is not an open transaction or does not find the table, the error of ctx, or the
// database's error; these leave the hold unchanged.
//
// Call Guard first in the transaction. Under REPEATABLE READ, nonlocking reads see the
// database as of the first read, which is then Guard. MariaDB 11.6 and later also refuses,
// with error 1020, to lock or change rows that others have changed since the first read; so
// a later Guard may fail.
func (k *Lock) Guard(ctx context.Context, tx Queryer) error {
	return opError("guard", k.Name(), k.guard(ctx, tx))
}

func (k *Lock) guard(ctx context.Context, tx Queryer) error {
	l, h := k.locker, k.hold
	if err := l.lockAfterDowngrade(ctx, h); err != nil {
		return err
	}
	h.guarded.Store(true) // from now on, Unlock does not hand the lock over
	ls, token := h.lease.Load(), h.tokens.token
	l.mu.Unlock()
	if err := k.Err(); err != nil {
		return err
	}
	if isNil(tx) {
		return store.ErrNoTransaction
	}
	err := l.table.Guard(ctx, tx, ls.Claim, token)
	if !errors.Is(err, store.ErrNotOwned) {
		return err
	}
	if l.becameShared(h, ls) {
		return k.guard(ctx, tx)
	}
	l.watchdog.OwnerChanged(ls.Claim)
	// The claim may still own the row, if tx ran on another server and the pool did not reply.
	// If the row is bound to a session, it would then stay held.
	l.releaser.Add(ls.Claim, lease.UntilReleased, false, time.Now())
	if err := k.Err(); err != nil {
		return err // the handle may have been unlocked meanwhile
	}
	return ErrLost
}

// isNil reports whether tx is nil, or a nil pointer such as the result of a Begin that failed.
func isNil(tx Queryer) bool {
	v := reflect.ValueOf(tx)
	return !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil()
}
