package store

import (
	"context"
	"database/sql/driver"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// Purge deletes the idle rows of locks, shared holds, permits and semaphores' wait queues, and returns
// their number. It works in batches. Each batch is one transaction, which first raises the token of
// the high-water row to the highest that it deletes.
func (s *Store) Purge(ctx context.Context, idle time.Duration) (deleted int64, err error) {
	pause, err := s.ensureHighWaterRow(ctx)
	if err != nil {
		return 0, err
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if err := s.endPhases(ctx, idle); err != nil {
		return 0, err
	}
	err = s.eachBatch(ctx, "idle_names", idle, func(found []idleRow) error {
		return retryContended(func() error {
			n, err := s.deleteIdle(ctx, found, idle)
			if err == nil {
				deleted += n
			}
			return err
		})
	})
	if err == nil {
		err = s.purgeSessions(ctx, idle)
	}
	return deleted, err
}

// eachBatch calls fn for each batch of the rows that a statement finds idle.
func (s *Store) eachBatch(ctx context.Context, statement string, idle time.Duration, fn func([]idleRow) error) error {
	for after := ""; ; {
		var found []idleRow
		err := s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			return s.selectAll(ctx, conn, &found, statement, "name", literal(after), "r", "l.", "idle", micros(idle), "count", strconv.Itoa(BatchSize))
		})
		if err != nil || len(found) == 0 {
			return err
		}
		if err := fn(found); err != nil {
			return err
		}
		after = found[len(found)-1].Name
	}
}

// endPhases resets the mode of names that were last held shared, and that nobody has held for at least
// idle, so that their rows can be deleted.
func (s *Store) endPhases(ctx context.Context, idle time.Duration) error {
	return s.eachBatch(ctx, "idle_phases", idle, func(found []idleRow) error {
		return s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			for _, row := range found {
				_, err := s.execForAnswer(ctx, conn, s.command("end_phase", append(sharedKeys(row.Name), "name", literal(row.Name), "idle", micros(idle), "r", "p.")...))
				if err != nil && !Contended(err) {
					return err
				}
			}
			return nil
		})
	})
}

// purgeSessions deletes the rows of sessions that have been dead for at least idle. These rows have no
// tokens that must be kept.
func (s *Store) purgeSessions(ctx context.Context, idle time.Duration) error {
	return s.eachBatch(ctx, "dead_sessions", idle, func(found []idleRow) error {
		names := make([]string, len(found))
		for i, row := range found {
			names[i] = row.Name
		}
		return s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			return s.retryDeadlocks(ctx, conn, s.query("delete",
				"names", literals(names), "count", strconv.Itoa(len(names)), "condition", s.query("fragments/idle_since", "idle", micros(idle))+" AND @@autocommit"))
		})
	})
}

type idleRow struct {
	Name  string
	Token uint64
}

// ensureHighWaterRow adds the high-water row if it is missing. In that case a first grant that did not
// see the row may be in flight; pause is long enough for it to end.
func (s *Store) ensureHighWaterRow(ctx context.Context) (pause time.Duration, err error) {
	err = s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var n int
		if err := s.get(ctx, conn, &n, "has_high_water"); err != nil || n > 0 {
			return err
		}
		pause = time.Second
		return s.retryDeadlocks(ctx, conn, s.query("add_high_water"))
	})
	return pause, err
}

func (s *Store) deleteIdle(ctx context.Context, found []idleRow, idle time.Duration) (deleted int64, err error) {
	tokens := make([]string, len(found))
	for i, f := range found {
		tokens[i] = strconv.FormatUint(f.Token, 10)
	}
	err = s.inTransaction(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var highest uint64
		if err := s.get(ctx, conn, &highest, "high_water"); err != nil {
			return err
		}
		var locked []idleRow
		if err := s.selectAll(ctx, conn, &locked, "idle_lock", "tokens", strings.Join(tokens, ","), "idle", micros(idle)); err != nil {
			return err
		}
		var names []string
		for _, f := range locked {
			if !slices.Contains(found, f) {
				continue // another shared hold with the same token, which a session may keep
			}
			names = append(names, f.Name)
			highest = max(highest, f.Token&maxToken)
		}
		if len(names) == 0 {
			return nil
		}
		if _, err := s.exec(ctx, conn, s.command("raise", "token", strconv.FormatUint(highest, 10))); err != nil {
			return err
		}
		r, err := s.exec(ctx, conn, s.command("delete", "names", literals(names), "count", strconv.Itoa(len(names)), "condition", "TRUE"))
		deleted = r.rows
		return err
	})
	return deleted, err
}

// inTransaction runs fn in a transaction. It leaves no transaction open, whatever the completion_type
// of the database session.
func (s *Store) inTransaction(ctx context.Context, fn func(context.Context, *sqlx.Conn) error) error {
	return s.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		s.statements.Add(2)
		_, err := conn.ExecContext(ctx, s.query("begin"))
		if err == nil {
			err = fn(ctx, conn)
		}
		if err == nil {
			_, err = conn.ExecContext(ctx, s.query("commit"))
		}
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if _, failed := conn.ExecContext(ctx, s.query("rollback")); failed != nil {
				conn.Raw(func(any) error { return driver.ErrBadConn }) // out of the pool
			}
		}
		return err
	})
}
