package store

import (
	"context"
	"database/sql"
	"errors"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"
)

// A Queryer is a transaction of the caller.
type Queryer interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}

// The errors of Guard for a transaction that cannot lock the row.
var (
	ErrPool          = errors.New("a pool is no transaction: pass a *sql.Tx, or the *sql.Conn that it runs on")
	ErrNoTransaction = errors.New("no transaction is open: pass the *sql.Tx, or the *sql.Conn on which it was begun")
	ErrNotFound      = errors.New("the transaction does not find the lock's row: it must run on the server of the Locker's table, and find that table under the same name")
)

// Guard locks the index entry of the token in tx. It returns ErrNotOwned if the claim no longer owns
// the row.
func (s *Store) Guard(ctx context.Context, tx Queryer, c Claim, token uint64) error {
	switch tx.(type) {
	case *sql.DB, *sqlx.DB:
		return ErrPool
	case *sql.Tx, *sqlx.Tx:
	default:
		if err := s.requireTransaction(ctx, tx); err != nil {
			return err
		}
	}
	name := c.Name
	if ModeOf(c.Name) == Shared {
		name = QueueOf(c.Name) // an exclusive request must move the entry of that row
	}
	lock := func(statement string) (found bool, err error) {
		s.statements.Add(1)
		err = tx.QueryRowContext(ctx, s.query(statement, "name", literal(name), "token", strconv.FormatUint(token, 10))).Scan(&token)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return err == nil, Describe(err)
	}
	if found, err := lock("guard"); err != nil || found && name == c.Name {
		return err
	} else if found {
		return s.checkShared(ctx, c)
	}
	if owned, err := s.stillOwned(ctx, c); err == nil && !owned {
		return ErrNotOwned
	}
	// The snapshot of the transaction may be older than the grant.
	if found, err := lock("guard_now"); found || err != nil {
		return err
	}
	if name != c.Name {
		if now, err := s.tokenOf(ctx, name); err == nil && now != token {
			return ErrNotOwned
		}
	}
	if owned, err := s.stillOwned(ctx, c); err == nil && owned {
		return ErrNotFound
	}
	return ErrNotOwned
}

// checkShared returns ErrNotOwned if a shared hold has ended, although Guard has locked the entry of
// its name: nobody has held the name exclusively since, but the end of the hold may have been
// reported. It does not wait for a connection, because tx may have the last one of the pool.
func (s *Store) checkShared(ctx context.Context, c Claim) error {
	if s.PoolInUse() && !s.poolShort() {
		return nil
	}
	if owned, err := s.stillOwned(ctx, c); err == nil && !owned {
		return ErrNotOwned
	}
	return nil
}

// tokenOf returns the token of a row, or 0 if it is missing, as read on a connection of the pool.
func (s *Store) tokenOf(ctx context.Context, name string) (token uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err = s.getReserved(ctx, &token, "token", "name", literal(name)); errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return token, err
}

// stillOwned reports whether the claim owns the row, as read on a connection of the pool.
func (s *Store) stillOwned(ctx context.Context, c Claim) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // the transaction may have the last connection of the pool
	defer cancel()
	owned, err := StillOwned(ctx, s, []Claim{c})
	return len(owned) > 0, err
}

// requireTransaction returns an error if tx, of an unknown type, has no open transaction:
// without one, a savepoint ends with the statement that sets it.
func (s *Store) requireTransaction(ctx context.Context, tx Queryer) error {
	for _, statement := range []string{"savepoint", "release_savepoint"} {
		s.statements.Add(1)
		var none any
		err := tx.QueryRowContext(ctx, s.query(statement)).Scan(&none)
		if errorNumber(err) == 1305 { // ER_SP_DOES_NOT_EXIST
			return ErrNoTransaction
		} else if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return Describe(err)
		}
	}
	return nil
}
