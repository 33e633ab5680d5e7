package leader_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/leader"
)

func TestMain(m *testing.M) {
	if dsn := os.Getenv(candidateVariable); dsn != "" {
		candidate(dsn)
		return
	}
	mysqltest.Main(m)
}

// onEach runs a test on each kind of server, with a pool for a database of its own.
func onEach(t *testing.T, test func(t *testing.T, db *sql.DB, dsn string)) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db, dsn := mysqltest.Open(t, kind)
			require.NoError(t, newLocker(t, db).CreateTable(t.Context()))
			test(t, db, dsn)
		})
	}
}

func newLocker(t *testing.T, db *sql.DB) *mysqllock.Locker {
	locker, err := mysqllock.New(db)
	require.NoError(t, err)
	t.Cleanup(func() { locker.Close() })
	return locker
}

// elect starts a candidate, and returns what Elect returns.
func elect(ctx context.Context, locker *mysqllock.Locker, lead func(context.Context, *mysqllock.Lock)) (result chan error) {
	result = make(chan error, 1)
	go func() { result <- leader.Elect(ctx, locker, "leader", lead) }()
	return result
}

// The lock is lost: lead is told, and awaited; then it leads again, with a higher
// token.
func TestLoss(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, _ string) {
		locker := newLocker(t, db)
		ctx, cancel := context.WithCancel(t.Context())
		leading, told, proceed := make(chan uint64, 3), make(chan error, 3), make(chan struct{}, 3)
		result := elect(ctx, locker, func(ctx context.Context, lock *mysqllock.Lock) {
			leading <- lock.Token()
			<-ctx.Done()
			told <- context.Cause(ctx)
			<-proceed
		})
		token := soon(t, leading)
		_, err := locker.ForceUnlock(ctx, "leader")
		require.NoError(t, err)
		require.ErrorIs(t, soon(t, told), mysqllock.ErrLost)
		info, err := locker.Inspect(ctx, "leader")
		require.NoError(t, err)
		require.False(t, info.Held, "it is no candidate while it unwinds")
		proceed <- struct{}{}
		require.Greater(t, soon(t, leading), token)
		cancel()
		require.ErrorIs(t, soon(t, told), context.Canceled)
		proceed <- struct{}{}
		require.ErrorIs(t, soon(t, result), context.Canceled)
		info, err = locker.Inspect(t.Context(), "leader")
		require.NoError(t, err)
		require.False(t, info.Held)
	})
}

// A leader whose work is done steps down, also if it panics; candidates of one
// process follow each other, also with a context that they share.
func TestStepDown(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, _ string) {
		locker := newLocker(t, db)
		ctx := mysqllock.WithOwner(t.Context())
		leading, proceed := make(chan uint64, 3), make(chan struct{}, 3)
		lead := func(_ context.Context, lock *mysqllock.Lock) {
			leading <- lock.Token()
			<-proceed
		}
		one, two := elect(ctx, locker, lead), elect(ctx, locker, lead)
		token := soon(t, leading)
		_, err := locker.TryLock(ctx, "leader", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.Empty(t, leading, "one at a time")
		proceed <- struct{}{}
		require.Greater(t, soon(t, leading), token)
		proceed <- struct{}{}
		require.NoError(t, errors.Join(soon(t, one), soon(t, two)))

		require.PanicsWithValue(t, "broken", func() {
			leader.Elect(ctx, locker, "leader", func(context.Context, *mysqllock.Lock) { panic("broken") })
		})
		lock, err := locker.TryLock(ctx, "leader", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, lock.Unlock())
	})
}

func TestErrors(t *testing.T) {
	onEach(t, func(t *testing.T, db *sql.DB, _ string) {
		never := func(context.Context, *mysqllock.Lock) { assert.Fail(t, "it does not lead") }
		require.ErrorIs(t, leader.Elect(t.Context(), newLocker(t, db), "", never), mysqllock.ErrInvalidName)

		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		require.Equal(t, cause, leader.Elect(ctx, newLocker(t, db), "leader", never))

		locker := newLocker(t, db)
		leading := make(chan struct{})
		result := elect(t.Context(), locker, func(ctx context.Context, _ *mysqllock.Lock) {
			close(leading)
			<-ctx.Done()
		})
		soon(t, leading)
		waiting := elect(t.Context(), locker, never)
		require.Eventually(t, func() bool { return locker.Stats().Waiting == 1 }, 10*time.Second, time.Millisecond)
		require.NoError(t, locker.Close())
		require.ErrorIs(t, soon(t, result), mysqllock.ErrClosed)
		require.ErrorIs(t, soon(t, waiting), mysqllock.ErrClosed)

		_, err := db.Exec("DROP TABLE mysqllock")
		require.NoError(t, err)
		require.ErrorIs(t, leader.Elect(t.Context(), newLocker(t, db), "leader", never), mysqllock.ErrNoTable)
	})
}
