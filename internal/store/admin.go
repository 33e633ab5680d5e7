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

// Info is what operators see of a lock.
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

// CreateTable creates the table, if it does not exist, and its high-water row.
func (s *Store) CreateTable(ctx context.Context) error {
	const head = "CREATE TABLE IF NOT EXISTS "
	schema := strings.Replace(s.schema, head+"mysqllock", head+s.name, 1)
	return s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		if err := s.retryDeadlocks(ctx, conn, schema); err != nil {
			return err
		}
		return s.retryDeadlocks(ctx, conn, s.query(sqlAddHighWater))
	})
}

// retryDeadlocks executes a statement, again after a deadlock.
func (s *Store) retryDeadlocks(ctx context.Context, conn *sqlx.Conn, query string) error {
	for try := 1; ; try++ {
		s.statements.Add(1)
		_, err := conn.ExecContext(ctx, query)
		if !Contended(err) || try == 10 {
			return err
		}
	}
}

func (s *Store) readInfos(ctx context.Context, query string) ([]Info, error) {
	var found []struct {
		Name, Owner, Holder       string
		Holds                     int
		Token                     uint64
		Acquired, Expires, Micros int64
		Waiters                   int
	}
	err := s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		s.statements.Add(1)
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

// Inspect returns the state of one name.
func (s *Store) Inspect(ctx context.Context, name string) (Info, error) {
	infos, err := s.readInfos(ctx, s.query(sqlInspect, "name", literal(name)))
	if err != nil || len(infos) == 0 {
		return Info{Name: name}, err
	}
	return infos[0], nil
}

// List returns every lock that is held.
func (s *Store) List(ctx context.Context) ([]Info, error) { return s.readInfos(ctx, s.query(sqlList)) }

// ForceUnlock frees the row, whatever its owner, and returns that owner, "" if the row was
// free. It waits, until ctx ends, while a transaction has the row locked.
func (s *Store) ForceUnlock(ctx context.Context, name string) (owner string, next Process, err error) {
	for pause := time.Millisecond; ; {
		owner, next, err = s.forceOnce(ctx, name)
		switch {
		case err == nil:
			return owner, next, nil
		case ctx.Err() != nil:
			return "", 0, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case err == errMoved:
			// Under READ UNCOMMITTED the next owner may be waiting for the same guard.
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

func (s *Store) forceOnce(ctx context.Context, name string) (owner string, next Process, err error) {
	// Not in the transaction, where SERIALIZABLE would lock the row.
	var holder struct {
		Owner string
		Token uint64
	}
	pairs := []string{"name", literal(name)}
	err = s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return s.get(ctx, conn, &holder, sqlHolder, pairs...)
	})
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, nil
	} else if err != nil {
		return "", 0, err
	}
	// Marked before, in case this process ends right after the commit, and after it, because
	// the holder may look in between.
	process := processOf(holder.Owner)
	if err := s.markForced(ctx, process); Contended(err) {
		return "", 0, errGuarded
	} else if err != nil {
		return "", 0, err
	}
	pairs = append(pairs, "token", strconv.FormatUint(holder.Token, 10))
	err = s.inTransaction(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		s.statements.Add(2)
		var seized uint64
		err := conn.GetContext(ctx, &seized, s.query(sqlSeize, pairs...))
		switch errorNumber(err) {
		case 1205, 1969, 3024: // lock wait, or the statement, took too long
			return errGuarded
		}
		if errors.Is(err, sql.ErrNoRows) {
			return errMoved
		} else if err != nil {
			return err
		}
		res, err := conn.ExecContext(ctx, s.query(sqlForce, pairs...))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err // the lease has expired
		}
		owner = holder.Owner
		first, err := res.LastInsertId()
		next = Process(first)
		return err
	})
	if err == nil && owner != "" && process != 0 && process != s.self && s.markForced(ctx, process) == nil {
		s.Signal(ctx, process) // if it does not listen, it notices at its next renewal
	}
	return owner, next, err
}

var (
	errMoved   = errors.New("another owner has it by now")
	errGuarded = errors.New("a transaction has the lock under Guard, or its row locked")
)
