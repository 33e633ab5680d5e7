package mysqllock

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/mysqllock/mysqllock/internal/store"
)

// DoTx acquires the lock as TryLock does, begins a transaction with opts on the Locker's pool, puts
// it under [Lock.Guard] and calls fn: no other owner can acquire the lock before the transaction
// has ended. DoTx commits the transaction if fn returns nil, rolls it back if fn returns an error
// or panics, and then unlocks. fn gets the context of the handle, and must not end the
// transaction itself.
//
// If DoTx returns nil, the transaction is committed. If it returns an error, nothing is
// committed, except after [ErrCommitUnknown]: the database did not reply to the commit. The error
// is that of TryLock, BeginTx, Guard, fn or the commit; an error of fn is joined with [ErrLost] if
// the lock was lost before Unlock, or with [ErrClosed] if Close released it.
//
// The loss of the lock ends the context of fn, but not the transaction, which Guard still
// protects: if fn returns nil, DoTx commits it. If ctx ends, the transaction is rolled back, as
// with [sql.DB.BeginTx]. A read-only transaction is guarded, too. The transaction occupies one
// connection of the pool until it ends.
func (l *Locker) DoTx(ctx context.Context, name string, wait, lease time.Duration, opts *sql.TxOptions, fn func(ctx context.Context, tx *sql.Tx) error) error {
	var committed bool
	err := l.do(ctx, name, wait, lease, func(k *Lock) (err error) {
		committed, err = k.inTx(ctx, opts, fn)
		return err
	})
	if committed {
		return nil
	}
	return err
}

// inTx calls fn in a transaction under Guard, and reports whether it was committed.
func (k *Lock) inTx(ctx context.Context, opts *sql.TxOptions, fn func(ctx context.Context, tx *sql.Tx) error) (committed bool, err error) {
	// Until Guard has returned, losing the lock also ends the wait for a connection.
	txCtx, end := context.WithCancel(ctx)
	defer end()
	stop := context.AfterFunc(k.Context(), end)
	tx, err := k.locker.db.BeginTx(txCtx, opts)
	if err != nil {
		return false, k.beginFailed(ctx, err)
	}
	defer tx.Rollback() // also if fn panics; it does nothing after a commit
	if err = k.Guard(txCtx, tx); err != nil || !stop() {
		return false, k.beginFailed(ctx, err)
	}
	if err = fn(k.Context(), tx); err != nil {
		return false, err
	}
	err = tx.Commit()
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() != nil && (errors.Is(err, sql.ErrTxDone) || errors.Is(err, ctx.Err())):
		err = fmt.Errorf("rolled back: %w", causeOf(ctx))
	case errors.Is(err, sql.ErrTxDone):
		err = fmt.Errorf("fn ended the transaction: %w", err)
	case errors.Is(err, driver.ErrBadConn) || !store.OutcomeUnknown(err): // ErrBadConn: nothing was sent
	default:
		err = fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	}
	return false, opError("commit", k.Name(), err)
}

// beginFailed returns why a transaction could not be begun and guarded.
func (k *Lock) beginFailed(ctx context.Context, err error) error {
	return opError("begin", k.Name(), cmp.Or(k.Err(), causeOf(ctx), err, ErrLost)) // never nil: nothing was committed
}
