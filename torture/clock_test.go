package main

import (
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// The database's clock moves, and what waits for a time does not wait for an hour.
func TestClock(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		c, err := newClock()
		require.NoError(t, err)
		defer c.remove()
		s, err := mysqltest.StartEnv(c.env(), kind)
		require.NoError(t, err)
		defer s.Stop()
		db, err := sql.Open("mysql", s.DSN("", "parseTime=true"))
		require.NoError(t, err)
		defer db.Close()
		_, err = db.Exec("CREATE DATABASE d")
		require.NoError(t, err)
		_, err = db.Exec("CREATE TABLE d.t (id INT PRIMARY KEY)")
		require.NoError(t, err)
		_, err = db.Exec("INSERT INTO d.t VALUES (1)")
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
			_, err = tx.Exec("SELECT * FROM d.t FOR UPDATE")
			require.NoError(t, err)
			conn, err := db.Conn(t.Context())
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), "SET SESSION innodb_lock_wait_timeout = 1")
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), "SELECT * FROM d.t FOR UPDATE")
			require.ErrorContains(t, err, "1205")
			require.NoError(t, conn.Close())
			require.NoError(t, tx.Rollback())
		}
	})
}
