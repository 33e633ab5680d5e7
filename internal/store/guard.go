package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
)

type queryer interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// waitCheckInterval is how often a connection whose statement may still wait in the
// server is checked.
const waitCheckInterval = time.Second

// guard locks the index entry of the token within tx. It returns ErrLost if the
// row is not the claim's any more.
func (t *Store) Guard(ctx context.Context, tx queryer, c Claim, token uint64) error {
	switch tx.(type) {
	case *sql.DB, *sqlx.DB:
		return errors.New("a pool is no transaction: pass a *sql.Tx, or the *sql.Conn that it runs on")
	case *sql.Tx, *sqlx.Tx:
	default:
		if err := t.requireTransaction(ctx, tx); err != nil {
			return err
		}
	}
	lock := func(statement string) (found bool, err error) {
		t.statements.Add(1)
		err = tx.QueryRowContext(ctx, t.query(statement, "name", literal(c.Name), "token", strconv.FormatUint(token, 10))).Scan(&token)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return err == nil, describe(err)
	}
	if found, err := lock(sqlGuard); found || err != nil {
		return err
	}
	if mine, err := t.stillOwned(ctx, c); err == nil && !mine {
		return ErrNotOwned
	}
	// The transaction sees the table as it was before the grant.
	if found, err := lock(sqlGuardNow); found || err != nil {
		return err
	}
	if mine, err := t.stillOwned(ctx, c); err == nil && mine {
		return errors.New("the transaction does not find the lock's row: it must run on the server of the Locker's table, and find that table under the same name")
	}
	return ErrNotOwned
}

// stillMine looks, in a session of the pool, whether the row is the claim's.
func (t *Store) stillOwned(ctx context.Context, c Claim) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // the transaction may have the last connection of the pool
	defer cancel()
	mine, err := StillOwned(ctx, t, []Claim{c})
	return len(mine) > 0, err
}

// requireTransaction returns an error if tx, of a type that is not known, has no
// open transaction: there a savepoint ends with the statement that sets it.
func (t *Store) requireTransaction(ctx context.Context, tx queryer) error {
	for _, statement := range []string{"SAVEPOINT mysqllock_guard", "RELEASE SAVEPOINT mysqllock_guard"} {
		t.statements.Add(1)
		var none any
		err := tx.QueryRowContext(ctx, statement).Scan(&none)
		if errorNumber(err) == 1305 { // ER_SP_DOES_NOT_EXIST
			return errors.New("no transaction is open: pass the *sql.Tx, or the *sql.Conn on which it was begun")
		} else if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return describe(err)
		}
	}
	return nil
}
