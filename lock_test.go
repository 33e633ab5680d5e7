package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	mysqltest.StopShared()
	if code == 0 {
		if leaked := leakedGoroutines(5 * time.Second); leaked != "" {
			fmt.Fprintf(os.Stderr, "goroutines left behind:\n%s\n", leaked)
			code = 1
		}
	}
	os.Exit(code)
}

// leakedGoroutines returns the stacks of goroutines that run code of this
// package after all tests, once they had some time to end.
func leakedGoroutines(grace time.Duration) string {
	var leaked []string
	for end := time.Now().Add(grace); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		buf := make([]byte, 16<<20)
		buf = buf[:runtime.Stack(buf, true)]
		leaked = leaked[:0]
		for _, g := range strings.Split(string(buf), "\n\n") {
			if strings.Contains(g, "mysqllock/mysqllock.") || strings.Contains(g, "go-sql-driver") {
				leaked = append(leaked, g)
			}
		}
		if len(leaked) == 0 {
			return ""
		}
	}
	return strings.Join(leaked, "\n\n")
}

// onEach runs a test on every server, with a database of its own that has the
// table.
func onEach(t *testing.T, test func(t *testing.T, e env)) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := mysqltest.Shared(t, kind)
			e := env{server: s, database: mysqltest.NewDatabase(t, s)}
			require.NoError(t, e.locker(t).CreateTable(ctx))
			test(t, e)
		})
	}
}

var ctx = context.Background()

// env is one database on one server.
type env struct {
	server   *mysqltest.Server
	database string
}

func (e env) db(t testing.TB, params string) *sql.DB {
	db, err := sql.Open("mysql", e.server.DSN(e.database, params))
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// locker returns a Locker on a pool of its own, as another process would have.
func (e env) locker(t testing.TB, opts ...mysqllock.Option) *mysqllock.Locker {
	return newLocker(t, e.db(t, ""), opts...)
}

func newLocker(t testing.TB, db *sql.DB, opts ...mysqllock.Option) *mysqllock.Locker {
	l, err := mysqllock.New(db, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func TestSmoke(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t), e.locker(t)
		k, err := a.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		info, err := b.Inspect(ctx, "x")
		require.NoError(t, err)
		t.Logf("%+v", info)
		_, err = b.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		go func() {
			time.Sleep(300 * time.Millisecond)
			t.Log(k.Unlock())
		}()
		start := time.Now()
		k2, err := b.TryLock(ctx, "x", 5*time.Second, 500*time.Millisecond)
		require.NoError(t, err)
		t.Log(time.Since(start), k2.Token()-k.Token())
		db := e.db(t, "")
		tx, _ := db.Begin()
		require.NoError(t, k2.Guard(ctx, tx))
		<-k2.Context().Done()
		t.Log(time.Since(start), context.Cause(k2.Context()), k2.Err(), k2.Unlock(), k2.Unlock())
		_, err = a.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, tx.Commit())
		k3, err := a.TryLock(ctx, "x", time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		ok, err := b.ForceUnlock(ctx, "x")
		require.True(t, ok)
		require.NoError(t, err)
		require.True(t, errors.Is(k3.Unlock(), mysqllock.ErrLost))
		n, err := a.Purge(ctx, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		t.Logf("%+v", a.Stats())
		list, err := a.List(ctx)
		require.NoError(t, err)
		require.Empty(t, list)
	})
}
