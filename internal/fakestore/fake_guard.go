package fakestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mysqllock/mysqllock/internal/store"
)

// Guard implements [store.Store.Guard]. Until a transaction of the table's pool has ended, the
// token of the row does not change. The end of other transactions is unknown: for those, Guard
// only compares the token, and sends nothing.
func (s *Store) Guard(ctx context.Context, on store.Queryer, c store.Claim, token uint64) error {
	switch on.(type) {
	case *sql.DB, *sqlx.DB:
		return store.ErrPool
	}
	var seen connArg
	err := on.QueryRowContext(ctx, "mysqllocktest: Guard", &seen).Scan(new(any))
	switch {
	case seen.conn == nil && (ctx.Err() != nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, sql.ErrConnDone)):
		return err
	case seen.conn != nil && seen.tx == nil:
		return store.ErrNoTransaction
	case seen.conn != nil && seen.conn.table != s.table:
		return store.ErrNotFound
	}
	name := c.Name
	if store.ModeOf(name) == store.Shared {
		name = store.QueueOf(name)
	}
	err = store.ErrNotOwned
	_, failed := s.execute(ctx, func(time.Time) {
		if r := s.table.rows[name]; r == nil || r.token != token {
			return
		} else if err = nil; seen.conn != nil {
			err = seen.conn.guard(seen.tx, r)
		}
	})
	if failed != nil {
		return failed
	}
	return err
}

// A connArg is the argument of a query. A connection of the table's pool stores itself in it,
// and its transaction. Other drivers must convert it first, which fails before anything is
// sent.
type connArg struct {
	conn *conn
	tx   *tx // nil if none is open
}

// Value implements [driver.Valuer].
func (*connArg) Value() (driver.Value, error) { return nil, errOtherDriver }

var errOtherDriver = errors.New("not a connection of the table's pool")
