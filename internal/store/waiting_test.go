package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// deadEnd is a driver whose connections answer a statement that passes over locked
// rows, and no other.
type deadEnd struct{}

func (d *deadEnd) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (d *deadEnd) Driver() driver.Driver                        { return nil }
func (d *deadEnd) Prepare(string) (driver.Stmt, error)          { return nil, driver.ErrSkip }
func (d *deadEnd) Begin() (driver.Tx, error)                    { return nil, driver.ErrSkip }
func (d *deadEnd) Close() error                                 { return nil }

func (d *deadEnd) ExecContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if strings.Contains(query, "SKIP LOCKED") {
		return oneRow{}, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// oneRow is the result of a statement that changed one row.
type oneRow struct{}

func (oneRow) LastInsertId() (int64, error) { return 0, nil }
func (oneRow) RowsAffected() (int64, error) { return 1, nil }

// A statement on a dead connection gives up its slot once another one finds that it does not
// wait for its row: the next may wait for the row.
func TestSlotOfAStatementOnADeadConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(new(deadEnd))
		defer db.Close()
		tbl, err := New(db, "", "mysqllock", "label", NewProcess(), 30*time.Second)
		require.NoError(t, err)
		tbl.sessionsChecked.Store(true)
		defer tbl.Close()
		c := Claim{"x", "owner"}
		brief, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_, _, err = tbl.Extend(brief, c, 30*time.Second, 0, 0)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		time.Sleep(2 * time.Second)
		require.False(t, tbl.rowWaits.enter(holdWaits, "x", 4), "it goes on")
		n, _, err := tbl.Renew(context.Background(), []Claim{c}, 30*time.Second, 0, 0)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		synctest.Wait()
		require.True(t, tbl.rowWaits.enter(holdWaits, "x", 4), "it is over")
		require.Zero(t, db.Stats().InUse)
	})
}

// A statement for a held lock continues beyond its time limit while the pool is in use, and
// ends as soon as another connection is free.
func TestTimeLimitWhileThePoolIsInUse(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		from, until time.Duration // the pool is used up
		ended       time.Duration // the statement
	}{
		"never used up":           {9 * s, 9 * s, s},
		"used up before":          {0, s / 2, s},
		"used up in time":         {s / 2, 2 * s, 2 * s},
		"used up for long":        {0, 5 * s, 5 * s},
		"used up for ever":        {0, time.Hour, 6 * s},
		"used up when it is over": {s + 1, 2 * s, s},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := sqlx.NewDb(sql.OpenDB(new(deadEnd)), "mysql")
				defer db.Close()
				db.SetMaxOpenConns(1)
				tbl := &Store{db: db, onlyConnTimeout: 2 * s}
				start := time.Now()
				time.AfterFunc(c.from, func() {
					conn, err := db.Conn(context.Background())
					assert.NoError(t, err)
					time.AfterFunc(c.until-c.from, func() { conn.Close() })
				})
				synctest.Wait()
				ctx, cancel := WithRetryLimit(context.Background(), s)
				defer cancel()
				long, stop := tbl.extendWhilePoolInUse(ctx)
				defer stop()
				<-long.Done()
				require.InDelta(t, c.ended, time.Since(start), float64(poolCheck))
				time.Sleep(2 * time.Hour)
			})
		})
	}
}

// executesNothing is a deadEnd whose server executes no statement of the owner that it is asked for.
type executesNothing struct{ deadEnd }

func (d *executesNothing) Connect(context.Context) (driver.Conn, error) { return d, nil }

func (d *executesNothing) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return new(falseRow), nil
}

// falseRow is one row with one column, which is false.
type falseRow struct{ read bool }

func (*falseRow) Columns() []string { return []string{"executes"} }
func (*falseRow) Close() error      { return nil }

func (r *falseRow) Next(values []driver.Value) error {
	if r.read {
		return io.EOF
	}
	values[0], r.read = int64(0), true
	return nil
}

// A first grant that waits for a connection of the pool keeps its place there: the server does not
// execute it, but its connection is not dead. The check of one that was sent ends with it.
func TestFirstGrantWaitsForTheExhaustedPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := sql.OpenDB(new(executesNothing))
		defer db.Close()
		db.SetMaxOpenConns(2)
		tbl, err := New(db, "", "mysqllock", "label", NewProcess(), 30*time.Second)
		require.NoError(t, err)
		tbl.sessionsChecked.Store(true)
		tbl.held = 1
		reserved, err := tbl.db.Connx(t.Context())
		require.NoError(t, err)
		tbl.reservedConn <- reserved
		application, err := db.Conn(t.Context())
		require.NoError(t, err)
		time.AfterFunc(10*time.Second, func() { application.Close() })

		began := time.Now()
		_, err = tbl.runFirst(t.Context(), "x", "owner", func(ctx context.Context, _ *sqlx.Conn) (reply, error) {
			select {
			case <-ctx.Done():
				return reply{}, ctx.Err()
			case <-time.After(1500 * time.Millisecond):
				return reply{}, nil
			}
		})
		require.NoError(t, err)
		require.Equal(t, 11500*time.Millisecond, time.Since(began))
		_, err = tbl.runFirst(t.Context(), "x", "owner", func(ctx context.Context, _ *sqlx.Conn) (reply, error) {
			<-ctx.Done()
			return reply{}, ctx.Err()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 13500*time.Millisecond, time.Since(began))
		tbl.HoldEnded()
		tbl.Close()
	})
}

// leaving is a deadEnd that knows whether its connection is back in the pool.
type leaving struct {
	deadEnd
	returned atomic.Bool
}

func (l *leaving) Connect(context.Context) (driver.Conn, error) { return l, nil }

// IsValid is called when the connection comes back to the pool.
func (l *leaving) IsValid() bool { l.returned.Store(true); return true }

func (l *leaving) ExecContext(context.Context, string, []driver.NamedValue) (driver.Result, error) {
	l.returned.Store(false)
	return l, nil
}

func (l *leaving) LastInsertId() (int64, error) { return 0, nil }

func (l *leaving) RowsAffected() (int64, error) {
	if l.returned.Load() {
		return 0, errors.New("the connection is another's")
	}
	return 1, nil
}

// A renewal counts its rows before its connection is returned to the pool: a Result waits
// for whatever statement runs there next, for 50 s if that waits for a row.
func TestRenewalLeavesItsConnection(t *testing.T) {
	db := sql.OpenDB(new(leaving))
	defer db.Close()
	tbl, err := New(db, "", "mysqllock", "label", NewProcess(), 30*time.Second)
	require.NoError(t, err)
	tbl.sessionsChecked.Store(true)
	defer tbl.Close()
	n, _, err := tbl.Renew(context.Background(), []Claim{{"x", "owner"}}, 30*time.Second, 0, 0)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	freed, _, err := tbl.Release(context.Background(), Claim{"x", "owner"})
	require.NoError(t, err)
	require.True(t, freed)
}

// A first grant that is woken, and must not use the slot, passes it on.
func TestFirstGrantPassesItsSlotOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w rowWaits
		require.True(t, w.enter(firstGrantWaits, "a", 1))
		entered := make(chan bool, 2)
		for _, name := range []string{"b", "c"} {
			go func() {
				ok, err := w.enterFirst(context.Background(), name, 1)
				assert.NoError(t, err)
				entered <- ok
			}()
			synctest.Wait() // in this order
		}
		require.True(t, w.enter(acquireWaits, "b", 1), "a statement of this process waits for the row by now")
		w.leave("a")
		require.False(t, <-entered)
		require.True(t, <-entered)
	})
}

// A slot that is freed twice frees no slot of another class.
func TestSlotIsFreedOnce(t *testing.T) {
	var w rowWaits
	require.True(t, w.enter(acquireWaits, "x", 1))
	require.True(t, w.enter(holdWaits, "y", 1))
	w.leave("y")
	w.leave("y")
	require.False(t, w.enter(acquireWaits, "z", 1))
	require.True(t, w.enter(holdWaits, "y", 1))
}
