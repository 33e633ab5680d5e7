package mysqllocktest_test

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/mysqllock/mysqllock"
)

// doTx is Locker.DoTx.
func doTx(l *mysqllock.Locker, db *sql.DB, ctx context.Context, name string, wait, lease time.Duration, opts *sql.TxOptions, fn func(ctx context.Context, tx *sql.Tx) error) (err error) {
	lock, err := l.TryLock(ctx, name, wait, lease)
	if err != nil {
		return err
	}
	defer func() {
		if failed := lock.Unlock(); errors.Is(failed, mysqllock.ErrLost) {
			err = errors.Join(err, failed)
		}
	}()
	tx, err := db.BeginTx(lock.Context(), opts)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := lock.Guard(lock.Context(), tx); err != nil {
		return err
	}
	if err := fn(lock.Context(), tx); err != nil {
		return err
	}
	return tx.Commit()
}
