package store

import (
	"context"
	"database/sql/driver"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

// purge deletes idle rows in batches, each in one transaction that first raises
// the high-water row above every token it deletes.
func (t *Store) Purge(ctx context.Context, idle time.Duration) (deleted int64, err error) {
	pause, err := t.ensureHighWaterRow(ctx)
	if err != nil {
		return 0, err
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	for after := ""; ; {
		var found []idleRow
		err = t.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			t.statements.Add(1)
			return conn.SelectContext(ctx, &found, t.query(sqlIdleNames,
				"name", literal(after), "idle", micros(idle), "count", strconv.Itoa(BatchSize)))
		})
		if err != nil || len(found) == 0 {
			return deleted, err
		}
		after = found[len(found)-1].Name
		for try := 1; ; try++ {
			n, err := t.deleteIdle(ctx, found, idle)
			if err == nil {
				deleted += n
				break
			}
			if !Contended(err) || try == 10 {
				return deleted, err
			}
		}
	}
}

type idleRow struct {
	Name  string
	Token uint64
}

// mark makes sure of the high-water row. Where it was missing, a first grant
// that did not see it may be under way: pause is long enough for that to end.
func (t *Store) ensureHighWaterRow(ctx context.Context) (pause time.Duration, err error) {
	err = t.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var n int
		t.statements.Add(2)
		if err := conn.GetContext(ctx, &n, t.query(sqlMarked)); err != nil || n > 0 {
			return err
		}
		pause = time.Second
		return t.retryDeadlocks(ctx, conn, t.query(sqlMark))
	})
	return pause, err
}

func (t *Store) deleteIdle(ctx context.Context, found []idleRow, idle time.Duration) (deleted int64, err error) {
	tokens := make([]string, len(found))
	for i, f := range found {
		tokens[i] = strconv.FormatUint(f.Token, 10)
	}
	err = t.inTransaction(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(4)
		var mark uint64
		if err := conn.GetContext(ctx, &mark, t.query(sqlHighWater)); err != nil {
			return err
		}
		var locked []idleRow
		if err := conn.SelectContext(ctx, &locked, t.query(sqlIdleLock, "tokens", strings.Join(tokens, ","), "idle", micros(idle))); err != nil || len(locked) == 0 {
			return err
		}
		var names []string
		for _, f := range locked {
			names = append(names, f.Name)
			mark = max(mark, f.Token)
		}
		if _, err := conn.ExecContext(ctx, t.query(sqlRaise, "token", strconv.FormatUint(mark, 10))); err != nil {
			return err
		}
		res, err := conn.ExecContext(ctx, t.query(sqlDelete, "names", literals(names), "count", strconv.Itoa(len(names))))
		if err == nil {
			deleted, err = res.RowsAffected()
		}
		return err
	})
	return deleted, err
}

// inTransaction does not leave a transaction open in the session, whatever its
// completion_type.
func (t *Store) inTransaction(ctx context.Context, fn func(context.Context, *sqlx.Conn) error) error {
	return t.onConn(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(2)
		if _, err := conn.ExecContext(ctx, "START TRANSACTION READ WRITE"); err != nil {
			return err
		}
		err := fn(ctx, conn)
		if err == nil {
			_, err = conn.ExecContext(ctx, sqlSettle)
		}
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if _, failed := conn.ExecContext(ctx, "ROLLBACK AND NO CHAIN NO RELEASE"); failed != nil {
				conn.Raw(func(any) error { return driver.ErrBadConn }) // out of the pool
			}
		}
		return err
	})
}
