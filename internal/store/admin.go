package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// storeInfo is what operators see of a lock.
type Info struct {
	Name                  string
	Held                  bool
	Holder, Owner         string
	Holds                 int
	Token                 uint64
	AcquiredAt, ExpiresAt time.Time
	ExpiresIn             time.Duration
	Waiters               int
}

// What follows is for people, not for terms.

func (t *Store) CreateTable(ctx context.Context) error {
	const head = "CREATE TABLE IF NOT EXISTS "
	schema := strings.Replace(t.schema, head+"mysqllock", head+t.name, 1)
	return t.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		if err := t.retryDeadlocks(ctx, conn, schema); err != nil {
			return err
		}
		return t.retryDeadlocks(ctx, conn, t.query(sqlMark))
	})
}

// repeat runs a statement until it is not the victim of a deadlock.
func (t *Store) retryDeadlocks(ctx context.Context, conn *sqlx.Conn, query string) error {
	for try := 1; ; try++ {
		t.statements.Add(1)
		_, err := conn.ExecContext(ctx, query)
		if !Contended(err) || try == 10 {
			return err
		}
	}
}

func (t *Store) readInfos(ctx context.Context, query string) ([]Info, error) {
	var found []struct {
		Name, Owner, Holder       string
		Holds                     int
		Token                     uint64
		Acquired, Expires, Micros int64
		Waiters                   int
	}
	err := t.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(1)
		return conn.SelectContext(ctx, &found, query)
	})
	infos := make([]Info, 0, len(found))
	for _, f := range found {
		info := Info{Name: f.Name, Token: f.Token, Waiters: f.Waiters}
		if f.Micros > 0 {
			info.Held = true
			info.Holder, info.Owner, info.Holds = f.Holder, f.Owner, f.Holds
			info.AcquiredAt = time.UnixMicro(f.Acquired).UTC()
			info.ExpiresAt = time.UnixMicro(f.Expires).UTC()
			info.ExpiresIn = duration(f.Micros)
		}
		infos = append(infos, info)
	}
	return infos, err
}

func (t *Store) Inspect(ctx context.Context, name string) (Info, error) {
	infos, err := t.readInfos(ctx, t.query(sqlInspect, "name", literal(name)))
	if err != nil || len(infos) == 0 {
		return Info{Name: name}, err
	}
	return infos[0], nil
}

func (t *Store) List(ctx context.Context) ([]Info, error) { return t.readInfos(ctx, t.query(sqlList)) }

// force frees the row whoever holds it and returns the owner it had, "" if none. It
// waits, until ctx ends, for whoever has the row locked.
func (t *Store) ForceUnlock(ctx context.Context, name string) (owner string, heir Process, err error) {
	for pause := time.Millisecond; ; {
		owner, heir, err = t.forceOnce(ctx, name)
		switch {
		case err == nil:
			return owner, heir, nil
		case ctx.Err() != nil:
			return "", 0, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case err == errMoved:
			// Or, under READ UNCOMMITTED, the next owner waits for the same guard.
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, 100*time.Millisecond)
		case err == errGuarded:
		case errorNumber(err) == 1969, errorNumber(err) == 3024: // the session's time limit, on a busy server
		default:
			return "", 0, err
		}
	}
}

func (t *Store) forceOnce(ctx context.Context, name string) (owner string, heir Process, err error) {
	// Not in the transaction, where SERIALIZABLE would lock the row.
	var holder struct {
		Owner string
		Token uint64
	}
	pairs := []string{"name", literal(name)}
	err = t.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(1)
		return conn.GetContext(ctx, &holder, t.query(sqlHolder, pairs...))
	})
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, nil
	} else if err != nil {
		return "", 0, err
	}
	pairs = append(pairs, "token", strconv.FormatUint(holder.Token, 10))
	err = t.inTransaction(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(2)
		var seized uint64
		err := conn.GetContext(ctx, &seized, t.query(sqlSeize, pairs...))
		switch errorNumber(err) {
		case 1205, 1969, 3024: // lock wait, or the statement, took too long
			return errGuarded
		}
		if errors.Is(err, sql.ErrNoRows) {
			return errMoved
		} else if err != nil {
			return err
		}
		res, err := conn.ExecContext(ctx, t.query(sqlForce, pairs...))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err // it expired meanwhile
		}
		owner = holder.Owner
		first, err := res.LastInsertId()
		heir = Process(first)
		return err
	})
	return owner, heir, err
}

var (
	errMoved   = errors.New("somebody else has it by now")
	errGuarded = errors.New("a transaction has the lock under Guard, or its row locked")
)
