package main

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

func TestDueDay(t *testing.T) {
	berlin, err := time.LoadLocation(zone)
	require.NoError(t, err)
	for _, c := range []struct {
		hour      int
		now, want string
	}{
		{3, "2026-01-01T01:59:59Z", "2025-12-31"},
		{3, "2026-01-01T02:00:00Z", "2026-01-01"},
		{3, "2026-01-01T22:59:59Z", "2026-01-01"},
		{3, "2026-01-01T23:00:00Z", "2026-01-01"}, // the next day there, but not yet 3
		{0, "2026-01-01T22:59:59Z", "2026-01-01"},
		{0, "2026-01-01T23:00:00Z", "2026-01-02"},
		{3, "2026-03-01T01:00:00Z", "2026-02-28"},
		// Clocks are set forward, from 2 to 3.
		{3, "2026-03-29T00:59:59Z", "2026-03-28"},
		{3, "2026-03-29T01:00:00Z", "2026-03-29"},
		{2, "2026-03-29T00:59:59Z", "2026-03-28"},
		{2, "2026-03-29T01:00:00Z", "2026-03-29"},
		// And back, from 3 to 2.
		{2, "2026-10-25T00:00:00Z", "2026-10-25"},
		{2, "2026-10-25T01:00:00Z", "2026-10-25"},
		{3, "2026-10-25T01:59:59Z", "2026-10-24"},
		{3, "2026-10-25T02:00:00Z", "2026-10-25"},
	} {
		now, err := time.Parse(time.RFC3339, c.now)
		require.NoError(t, err)
		require.Equal(t, c.want, dueDay(now, berlin, c.hour), "%s, due at %d", c.now, c.hour)
	}
}

// Work that fails leaves no mark, and is done again; work that is done is not. Not
// even ForceUnlock lets another host begin before the work is committed.
func TestOnce(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.Shared(t, kind)
			dsn := server.DSN(mysqltest.NewDatabase(t, server), "")
			one, other := open(t, dsn), open(t, dsn)
			_, err := one.db.Exec(createMarks)
			require.NoError(t, err)

			failure := errors.New("no paper")
			one.work = func(context.Context, *sql.Tx, string) error { return failure }
			_, done, err := one.once(t.Context())
			require.ErrorIs(t, err, failure)
			require.False(t, done)

			other.work = func(context.Context, *sql.Tx, string) error {
				require.Fail(t, "the other host does it too")
				return nil
			}
			one.work = func(ctx context.Context, _ *sql.Tx, _ string) error {
				ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
				_, err := other.locker.ForceUnlock(ctx, "daily:report")
				require.ErrorIs(t, err, context.DeadlineExceeded)
				_, _, err = other.once(t.Context())
				require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
				return nil
			}
			day, done, err := one.once(t.Context())
			require.NoError(t, err)
			require.True(t, done)
			for _, j := range []*job{one, other} {
				same, done, err := j.once(t.Context())
				require.NoError(t, err)
				require.False(t, done)
				require.Equal(t, day, same)
			}
		})
	}
}

// open returns the job as a host has it that can begin at any time.
func open(t *testing.T, dsn string) *job {
	db, err := sql.Open("mysql", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	locker, err := mysqllock.New(db)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close()) })
	require.NoError(t, locker.CreateTable(t.Context()))
	noon := func(context.Context, mysqllock.Queryer) (time.Time, error) {
		return time.Date(2026, 5, 5, 12, 0, 0, 0, time.UTC), nil
	}
	return &job{db: db, locker: locker, name: "report", zone: time.UTC, hour: 3, now: noon}
}

// A session's time zone does not change what the database's clock says.
func TestDatabaseNow(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.Shared(t, kind)
			for _, params := range []string{"", "time_zone=%27%2B09%3A00%27", "time_zone=%27-11%3A00%27&parseTime=true&loc=Local"} {
				db, err := sql.Open("mysql", server.DSN("", params))
				require.NoError(t, err)
				t.Cleanup(func() { db.Close() })
				now, err := databaseNow(t.Context(), db)
				require.NoError(t, err)
				var unix int64
				require.NoError(t, db.QueryRow("SELECT UNIX_TIMESTAMP()").Scan(&unix))
				require.WithinDuration(t, time.Unix(unix, 0), now, time.Minute)
			}
		})
	}
}
