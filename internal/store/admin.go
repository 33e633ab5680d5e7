package store

import (
	"context"
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
