package main

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// withClock starts a server whose clock can be set, and opens a database on it.
func withClock(t *testing.T, kind string) (*clock, *sql.DB) {
	c, err := newClock()
	require.NoError(t, err)
	t.Cleanup(c.remove)
	s, err := mysqltest.StartEnv(c.env(), kind)
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	db, err := sql.Open("mysql", s.DSN(mysqltest.NewDatabase(t, s), "parseTime=true"))
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return c, db
}

// The server's clock can be set forward and back, and its waits and timeouts take no longer because
// of that.
func TestClock(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		c, db := withClock(t, kind)
		_, err := db.Exec("CREATE TABLE t (id INT PRIMARY KEY)")
		require.NoError(t, err)
		_, err = db.Exec("INSERT INTO t VALUES (1)")
		require.NoError(t, err)

		for _, offset := range []time.Duration{time.Hour, 0} {
			require.NoError(t, c.set(offset))
			var at time.Time
			require.NoError(t, db.QueryRow("SELECT UTC_TIMESTAMP(6)").Scan(&at))
			require.WithinDuration(t, time.Now().Add(offset), at, time.Minute)
			var slept int
			require.NoError(t, db.QueryRow("SELECT SLEEP(0.1)").Scan(&slept))

			tx, err := db.Begin()
			require.NoError(t, err)
			_, err = tx.Exec("SELECT * FROM t FOR UPDATE")
			require.NoError(t, err)
			conn, err := db.Conn(t.Context())
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), "SET SESSION innodb_lock_wait_timeout = 1")
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), "SELECT * FROM t FOR UPDATE")
			require.ErrorContains(t, err, "1205")
			require.NoError(t, conn.Close())
			require.NoError(t, tx.Rollback())
		}
	})
}

// When the server's clock jumps forward, leases end: the holder cannot commit, and reports the loss
// at its next renewal. Tokens rise, also when the clock is set back.
func TestClockSteps(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		c, db := withClock(t, kind)
		ctx := t.Context()
		holder, err := mysqllock.New(db, mysqllock.WithLease(6*time.Second))
		require.NoError(t, err)
		defer holder.Close()
		other, err := mysqllock.New(db)
		require.NoError(t, err)
		defer other.Close()
		require.NoError(t, other.CreateTable(ctx))

		first, err := holder.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, c.set(time.Hour))
		second, err := other.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Greater(t, second.Token(), first.Token())
		tx, err := db.Begin()
		require.NoError(t, err)
		require.ErrorIs(t, first.Guard(ctx, tx), mysqllock.ErrLost)
		require.NoError(t, tx.Rollback())
		<-first.Context().Done()
		require.ErrorIs(t, first.Unlock(), mysqllock.ErrLost)

		require.NoError(t, c.set(0))
		require.NoError(t, second.Err())
		require.NoError(t, second.Unlock())
		third, err := other.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Greater(t, third.Token(), second.Token())
		require.NoError(t, third.Unlock())
	})
}
