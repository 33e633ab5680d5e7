package mysqllock_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
)

// An opaqueConn is a connection of a driver that wraps another, as those do that
// trace statements, and does not give it away.
type opaqueConn struct{ driver.Conn }

// A wrappedConn does.
type wrappedConn struct{ opaqueConn }

func (c wrappedConn) Raw() driver.Conn { return c.Conn }

func (c opaqueConn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, query, args)
}

func (c opaqueConn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.(driver.QueryerContext).QueryContext(ctx, query, args)
}

type wrappingConnector struct {
	driver.Connector
	wrap func(driver.Conn) driver.Conn
}

func (c wrappingConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	return c.wrap(conn), err
}

func (e env) wrapped(t testing.TB) *sql.DB {
	return e.wrappedBy(t, func(conn driver.Conn) driver.Conn { return wrappedConn{opaqueConn{conn}} })
}

func (e env) wrappedBy(t testing.TB, wrap func(driver.Conn) driver.Conn) *sql.DB {
	config, err := mysql.ParseDSN(e.server.DSN(e.database, ""))
	require.NoError(t, err)
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db := sql.OpenDB(wrappingConnector{connector, wrap})
	t.Cleanup(func() { db.Close() })
	return db
}

// In a session in which the application left a transaction open, a lock would be
// its own until that ends, and gone with a rollback: it is refused.
func TestTransactionLeftOpen(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for what, db := range map[string]*sql.DB{"driver": e.db(t, ""), "wrapped driver": e.wrapped(t)} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				other := e.locker(t)
				db.SetMaxOpenConns(1)
				exec := func(query string) {
					t.Helper()
					_, err := db.Exec(query)
					require.NoError(t, err)
				}
				l := newLocker(t, db)
				k := acquire(t, l, what, mysqllock.AutoRenew)
				known := "known to " + what
				require.NoError(t, acquire(t, l, known, mysqllock.AutoRenew).Unlock())

				exec("BEGIN")
				for _, name := range []string{known, "new to " + what} {
					for _, wait := range []time.Duration{0, mysqllock.WaitForever} {
						_, err := l.TryLock(ctx, name, wait, mysqllock.AutoRenew)
						require.ErrorContains(t, err, "transaction open")
						require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
						require.NotErrorIs(t, err, mysqllock.ErrUnavailable)
					}
				}
				require.ErrorContains(t, k.Extend(ctx, time.Minute), "transaction open")
				_, err := l.ForceUnlock(ctx, what)
				require.ErrorContains(t, err, "transaction open")
				require.ErrorContains(t, k.Unlock(), "transaction open")
				requireHeld(t, other, what, true)
				exec("ROLLBACK")
				requireFree(t, other, what) // released in the background

				exec("BEGIN")
				exec("COMMIT")
				k = acquire(t, l, known, mysqllock.AutoRenew)
				requireHeld(t, other, known, true)
				require.NoError(t, k.Unlock())
				requireHeld(t, other, known, false)
			})
		}
	})
}

// A pool that can give another connection than that with the open transaction does.
func TestTransactionLeftOpenInALargerPool(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		other := e.locker(t)
		for _, limit := range []int{2, 0} {
			db := e.db(t, "")
			db.SetMaxOpenConns(limit)
			l := newLocker(t, db, mysqllock.WithLease(3*time.Second))
			conn, err := db.Conn(ctx)
			require.NoError(t, err)
			_, err = conn.ExecContext(ctx, "BEGIN")
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			k := acquire(t, l, "x", mysqllock.AutoRenew)
			requireHeld(t, other, "x", true)
			eventually(t, "renewals", func() bool { return l.Stats().Renewals >= 2 })
			require.NoError(t, k.Err())
			require.NoError(t, k.Unlock())
			requireHeld(t, other, "x", false)
		}
	})
}

// A transaction that the server ended with an error is not open, although no answer
// has said so yet.
func TestTransactionEndedByTheServer(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db, other := e.db(t, ""), e.db(t, "")
		db.SetMaxOpenConns(1)
		l := newLocker(t, db)
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock()) // checks the session
		_, err := other.Exec("CREATE TABLE d (id INT PRIMARY KEY, n INT NOT NULL)")
		require.NoError(t, err)
		_, err = other.Exec("INSERT INTO d VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0)")
		require.NoError(t, err)
		heavy, err := other.Begin()
		require.NoError(t, err)
		defer heavy.Rollback()
		_, err = heavy.Exec("UPDATE d SET n = 1 WHERE id > 1")
		require.NoError(t, err)
		for _, statement := range []string{"BEGIN", "UPDATE d SET n = 1 WHERE id = 1"} {
			_, err = db.Exec(statement)
			require.NoError(t, err)
		}
		waited := make(chan error, 1)
		go func() {
			_, err := heavy.Exec("UPDATE d SET n = 2 WHERE id = 1")
			waited <- err
		}()
		_, err = db.Exec("UPDATE d SET n = 2 WHERE id = 2") // one of them waits, the other meets it
		var told *mysql.MySQLError
		require.ErrorAs(t, err, &told)
		require.EqualValues(t, 1213, told.Number, "the lighter transaction is the victim")
		require.NoError(t, <-waited)
		require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
	})
}
