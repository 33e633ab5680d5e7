package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

func TestMain(m *testing.M) {
	exitIfWorker()
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
	t.Parallel()
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

// eventually waits for something that another goroutine or process brings about.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		require.True(t, time.Now().Before(end), what)
	}
}

// acquire takes a lock that must be free.
func acquire(t testing.TB, l *mysqllock.Locker, name string, lease time.Duration) *mysqllock.Lock {
	t.Helper()
	k, err := l.TryLock(ctx, name, 5*time.Second, lease)
	require.NoError(t, err)
	return k
}

func requireHeld(t testing.TB, l *mysqllock.Locker, name string, held bool) mysqllock.Info {
	t.Helper()
	info, err := l.Inspect(ctx, name)
	require.NoError(t, err)
	require.Equal(t, held, info.Held, "%+v", info)
	return info
}

func requireOver(t testing.TB, k *mysqllock.Lock, why error) {
	t.Helper()
	select {
	case <-k.Context().Done():
	case <-time.After(20 * time.Second):
		require.FailNow(t, "the context did not end")
	}
	require.ErrorIs(t, context.Cause(k.Context()), why)
	require.ErrorIs(t, k.Err(), why)
}

func TestAcquireAndRelease(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		a, b := e.locker(t, mysqllock.WithIdentity("host-a ☃")), e.locker(t)
		k := acquire(t, a, "order:42", mysqllock.AutoRenew)
		require.Equal(t, "order:42", k.Name())
		require.NoError(t, k.Err())
		require.NoError(t, k.Context().Err())

		info := requireHeld(t, b, "order:42", true)
		require.Equal(t, "order:42", info.Name)
		require.Equal(t, "host-a ☃", info.Holder)
		require.NotEmpty(t, info.Owner)
		require.Equal(t, 1, info.Holds)
		require.Equal(t, k.Token(), info.Token)
		require.InDelta(t, mysqllock.DefaultLease.Seconds(), info.ExpiresIn.Seconds(), 5)
		require.Equal(t, mysqllock.DefaultLease, info.ExpiresAt.Sub(info.AcquiredAt))
		require.Equal(t, time.UTC, info.ExpiresAt.Location())
		require.WithinDuration(t, time.Now(), info.AcquiredAt, time.Minute)

		_, err := b.TryLock(ctx, "order:42", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.ErrorContains(t, err, `"order:42"`)
		list, err := b.List(ctx)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.Equal(t, 1, a.Stats().Held)

		require.NoError(t, k.Unlock())
		requireOver(t, k, mysqllock.ErrNotHeld)
		requireHeld(t, b, "order:42", false)
		list, err = b.List(ctx)
		require.NoError(t, err)
		require.Empty(t, list)
		next := acquire(t, b, "order:42", time.Minute)
		require.Greater(t, next.Token(), k.Token())
		require.ErrorIs(t, k.Unlock(), mysqllock.ErrNotHeld)
		require.ErrorIs(t, k.Extend(ctx, time.Minute), mysqllock.ErrNotHeld)
		requireHeld(t, a, "order:42", true)
		require.NoError(t, next.Unlock())

		none := requireHeld(t, a, "never locked", false)
		require.Zero(t, none.Token)
		stats := a.Stats()
		require.EqualValues(t, 1, stats.Acquired)
		require.EqualValues(t, 1, stats.Released)
		require.EqualValues(t, 1, b.Stats().NotAcquired)
		require.Zero(t, stats.Held)
	})
}

func TestNames(t *testing.T) {
	distinct := []string{
		"Foo", "foo", "foo ", " foo", "föö", "fo\u0308o\u0308", "fóó", "😀", "😁", "ß", "ss", "%", "_", "?", ":x", "'", `"`, "`", `\`, `\'`, "--", "/*", ";",
		"' OR '1'='1", "'; DROP TABLE mysqllock; -- ", "x'00'", "{name}", "{owner}", "\u00a0", "\u200b", "\ufeff", "表", "0", "00", "NULL",
		strings.Repeat("a", 255), strings.Repeat("a", 254), strings.Repeat("é", 127),
	}
	invalid := map[string]string{
		"": "empty", strings.Repeat("a", 256): "256 bytes", strings.Repeat("é", 128): "256 bytes",
		"\x00": "U+0000", "a\nb": "U+000A", "\x7f": "U+007F", "\u0085": "U+0085", "\xff": "UTF-8", "a\xc3": "UTF-8", "\x1b[2J": "U+001B",
	}
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		var locks []*mysqllock.Lock
		for _, name := range distinct {
			k, err := l.TryLock(ctx, name, 0, mysqllock.AutoRenew)
			require.NoError(t, err, "%q", name)
			locks = append(locks, k)
		}
		for i, name := range distinct {
			require.Equal(t, locks[i].Token(), requireHeld(t, other, name, true).Token, "%q", name)
			_, err := other.TryLock(ctx, name, 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrNotAcquired, "%q", name)
		}
		list, err := other.List(ctx)
		require.NoError(t, err)
		require.Len(t, list, len(distinct))
		for _, k := range locks {
			require.NoError(t, k.Unlock())
		}
		purged, err := l.Purge(ctx, 0)
		require.NoError(t, err)
		require.EqualValues(t, len(distinct), purged)

		for name, why := range invalid {
			_, err := l.TryLock(ctx, name, 0, mysqllock.AutoRenew)
			require.ErrorIs(t, err, mysqllock.ErrInvalidName, "%q", name)
			require.ErrorContains(t, err, why)
			_, err = l.Inspect(ctx, name)
			require.ErrorIs(t, err, mysqllock.ErrInvalidName)
			_, err = l.ForceUnlock(ctx, name)
			require.ErrorIs(t, err, mysqllock.ErrInvalidName)
		}
	})
}

func TestBadInput(t *testing.T) {
	db, err := sql.Open("mysql", "nobody@tcp(127.0.0.1:1)/none") // New must not ask it
	require.NoError(t, err)
	defer db.Close()
	for option, opt := range map[string]mysqllock.Option{
		"WithTable":        mysqllock.WithTable("a`; DROP TABLE b"),
		"WithTable: ":      mysqllock.WithTable("a.b.c"),
		"WithTable: \"\"":  mysqllock.WithTable(""),
		"WithLease":        mysqllock.WithLease(999 * time.Millisecond),
		"WithPollInterval": mysqllock.WithPollInterval(9 * time.Millisecond),
		"WithLogger":       mysqllock.WithLogger(nil),
		"WithIdentity":     mysqllock.WithIdentity("a\nb"),
		"WithNotifier":     mysqllock.WithNotifier(nil),
	} {
		_, err := mysqllock.New(db, opt)
		require.ErrorContains(t, err, option)
	}
	_, err = mysqllock.New(nil)
	require.Error(t, err)

	l, err := mysqllock.New(db, mysqllock.WithTable("db.locks"), mysqllock.WithLease(time.Second), mysqllock.WithPollInterval(10*time.Millisecond))
	require.NoError(t, err)
	defer l.Close()
	for _, lease := range []time.Duration{-1, 1, 9 * time.Millisecond} {
		_, err := l.TryLock(ctx, "x", 0, lease)
		require.ErrorIs(t, err, mysqllock.ErrInvalidLease)
	}
	_, err = l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
	require.Error(t, err)
	require.NotErrorIs(t, err, mysqllock.ErrNotAcquired, "a server that cannot be reached is not contention")
	_, err = l.TryLock(ctx, "x", 100*time.Millisecond, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrUnavailable)
	require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
	require.ErrorContains(t, err, "refused", "the wait ran out, and why")
	ended, cancel := context.WithCancelCause(ctx)
	cause := errors.New("shutting down")
	cancel(cause)
	_, err = l.TryLock(ended, "x", 0, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	require.ErrorIs(t, err, cause)
}

func TestWait(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		holder, l := e.locker(t), e.locker(t)
		acquire(t, holder, "x", time.Minute)

		start := time.Now()
		_, err := l.TryLock(ctx, "x", 300*time.Millisecond, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)

		cause := errors.New("client went away")
		waiting, cancel := context.WithCancelCause(ctx)
		time.AfterFunc(100*time.Millisecond, func() { cancel(cause) })
		_, err = l.Lock(waiting, "x", mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.ErrorIs(t, err, cause)
		require.ErrorIs(t, err, context.Canceled)

		short, cancelShort := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancelShort()
		_, err = l.TryLock(short, "x", time.Hour, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, l.Stats().Waiting)
		require.EqualValues(t, 3, l.Stats().NotAcquired)

		// The end of the holder's lease ends the wait, long before the next poll.
		slow := e.locker(t, mysqllock.WithPollInterval(time.Hour))
		acquire(t, holder, "y", 700*time.Millisecond)
		k, err := slow.Lock(ctx, "y", mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, k.Unlock())
	})
}

func TestContextOfTheLock(t *testing.T) {
	type key struct{}
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t, mysqllock.WithLease(3*time.Second))
		request, cancel := context.WithCancel(context.WithValue(ctx, key{}, "v"))
		k, err := l.TryLock(request, "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Equal(t, "v", k.Context().Value(key{}))
		cancel()
		<-k.Context().Done()
		require.ErrorIs(t, context.Cause(k.Context()), context.Canceled)
		// The lock stays held, trusted and renewed.
		renewals := l.Stats().Renewals
		eventually(t, "two renewals", func() bool { return l.Stats().Renewals >= renewals+2 })
		require.NoError(t, k.Err())
		requireHeld(t, l, "x", true)
		require.NoError(t, k.Unlock())
		requireHeld(t, l, "x", false)
	})
}

func TestReentry(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		outer := acquire(t, l, "x", mysqllock.AutoRenew)
		statements := l.Stats().Statements
		inner, err := l.TryLock(outer.Context(), "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		innermost, err := l.TryLock(inner.Context(), "x", 0, 50*time.Millisecond)
		require.NoError(t, err)
		require.Equal(t, outer.Token(), innermost.Token())
		_, err = l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired, "another owner in the same process")
		// In whatever order.
		require.NoError(t, outer.Unlock())
		require.ErrorIs(t, outer.Unlock(), mysqllock.ErrNotHeld)
		require.NoError(t, inner.Unlock())
		require.Equal(t, statements, l.Stats().Statements, "nothing was sent")
		require.EqualValues(t, 2, l.Stats().Reentered)
		requireHeld(t, other, "x", true)
		require.NoError(t, innermost.Err())
		require.NoError(t, innermost.Unlock())
		requireHeld(t, other, "x", false)

		// An owner that a middleware started, and several locks under it.
		request := mysqllock.WithOwner(ctx)
		a, err := l.TryLock(request, "a", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		b, err := l.TryLock(request, "b", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		again, err := l.TryLock(request, "a", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.Equal(t, a.Token(), again.Token())
		_, err = other.TryLock(request, "a", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired, "another Locker knows nothing of it")
		for _, k := range []*mysqllock.Lock{a, b, again} {
			require.NoError(t, k.Unlock())
		}
	})
}

func TestRenewalWritesHolds(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t, mysqllock.WithLease(time.Second))
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		_, err := l.TryLock(k.Context(), "x", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		eventually(t, "holds", func() bool { return requireHeld(t, l, "x", true).Holds == 2 })
	})
}

func TestFixedLease(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		k := acquire(t, l, "x", 400*time.Millisecond)
		inner, err := l.TryLock(k.Context(), "x", 0, 10*time.Millisecond)
		require.NoError(t, err)
		requireOver(t, k, mysqllock.ErrLost)
		requireOver(t, inner, mysqllock.ErrLost)
		// Told before anyone else could own it.
		next := acquire(t, other, "x", time.Minute)
		require.Greater(t, next.Token(), k.Token())
		_, err = l.TryLock(k.Context(), "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrLost)
		require.ErrorIs(t, k.Extend(ctx, time.Minute), mysqllock.ErrLost)
		require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
		require.ErrorIs(t, k.Unlock(), mysqllock.ErrNotHeld)
		require.ErrorIs(t, k.Err(), mysqllock.ErrNotHeld)
		require.ErrorIs(t, inner.Unlock(), mysqllock.ErrLost)
		requireHeld(t, l, "x", true)
		require.NoError(t, next.Unlock())
		require.EqualValues(t, 1, l.Stats().Lost)
		require.Zero(t, l.Stats().Held)
	})
}

func TestExtend(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		k := acquire(t, l, "x", 500*time.Millisecond)
		require.NoError(t, k.Extend(ctx, time.Minute))
		info := requireHeld(t, l, "x", true)
		require.InDelta(t, 60, info.ExpiresIn.Seconds(), 5)
		require.NoError(t, k.Extend(ctx, time.Second), "never shortens")
		info = requireHeld(t, l, "x", true)
		require.InDelta(t, 60, info.ExpiresIn.Seconds(), 5)
		for _, lease := range []time.Duration{0, -1, time.Millisecond} {
			require.ErrorIs(t, k.Extend(ctx, lease), mysqllock.ErrInvalidLease)
		}
		auto := acquire(t, l, "y", mysqllock.AutoRenew)
		require.NoError(t, auto.Extend(ctx, time.Hour))
		require.InDelta(t, 3600, requireHeld(t, l, "y", true).ExpiresIn.Seconds(), 5)
		require.NoError(t, auto.Unlock())
		require.NoError(t, k.Unlock())

		gone := acquire(t, l, "z", time.Minute)
		_, err := e.db(t, "").Exec("DELETE FROM mysqllock WHERE name = 'z'")
		require.NoError(t, err)
		require.ErrorIs(t, gone.Extend(ctx, time.Minute), mysqllock.ErrLost)
		requireOver(t, gone, mysqllock.ErrLost)
	})
}

// The watchdog does not take back what Extend has promised.
func TestRenewalKeepsALongerLease(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t, mysqllock.WithLease(time.Second))
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		renewals := l.Stats().Renewals
		require.NoError(t, k.Extend(ctx, time.Hour))
		eventually(t, "renewed", func() bool { return l.Stats().Renewals > renewals+1 })
		require.InDelta(t, 3600, requireHeld(t, l, "x", true).ExpiresIn.Seconds(), 60)
		require.NoError(t, k.Unlock())
	})
}

func TestLossIsLearnt(t *testing.T) {
	ways := map[string]func(t *testing.T, e env, name string){
		"force": func(t *testing.T, e env, name string) {
			held, err := e.locker(t).ForceUnlock(ctx, name)
			require.NoError(t, err)
			require.True(t, held)
		},
		"deleted": func(t *testing.T, e env, name string) {
			_, err := e.db(t, "").Exec("DELETE FROM mysqllock WHERE name = ?", name)
			require.NoError(t, err)
		},
	}
	onEach(t, func(t *testing.T, e env) {
		for way, take := range ways {
			for kind, lease := range map[string]time.Duration{"auto": mysqllock.AutoRenew, "fixed": 4 * time.Second} {
				t.Run(way+"/"+kind, func(t *testing.T) {
					t.Parallel()
					name := way + kind
					l := e.locker(t, mysqllock.WithLease(3*time.Second))
					k := acquire(t, l, name, lease)
					start := time.Now()
					take(t, e, name)
					// A renewal of the lost lease would prolong this one's.
					next := acquire(t, e.locker(t, mysqllock.WithLease(3*time.Second)), name, mysqllock.AutoRenew)
					require.Greater(t, next.Token(), k.Token())
					requireOver(t, k, mysqllock.ErrLost)
					require.Less(t, time.Since(start), 3*time.Second, "at its next renewal, or look")
					require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)
					requireHeld(t, l, name, true)
				})
			}
		}
	})
}

func TestForceUnlock(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		held, err := l.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		require.True(t, held)
		require.ErrorIs(t, k.Err(), mysqllock.ErrLost, "a holder in this process is told at once")
		require.ErrorIs(t, context.Cause(k.Context()), mysqllock.ErrLost)
		held, err = l.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		require.False(t, held)
		held, err = l.ForceUnlock(ctx, "never locked")
		require.NoError(t, err)
		require.False(t, held)
		require.Greater(t, acquire(t, l, "x", mysqllock.AutoRenew).Token(), k.Token())
	})
}

func TestDo(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		failed := errors.New("failed")
		do := func(fn func(context.Context) error) error {
			return l.Do(ctx, "x", time.Second, mysqllock.AutoRenew, fn)
		}
		require.NoError(t, do(func(ctx context.Context) error {
			return l.Do(ctx, "x", 0, mysqllock.AutoRenew, func(context.Context) error { return nil })
		}))
		require.Equal(t, failed, do(func(context.Context) error { return failed }))
		err := do(func(context.Context) error {
			_, err := l.ForceUnlock(ctx, "x")
			require.NoError(t, err)
			return failed
		})
		require.ErrorIs(t, err, failed)
		require.ErrorIs(t, err, mysqllock.ErrLost)
		require.PanicsWithValue(t, "boom", func() { _ = do(func(context.Context) error { panic("boom") }) })
		requireHeld(t, l, "x", false)
		acquire(t, l, "x", mysqllock.AutoRenew)
		require.ErrorIs(t, l.Do(ctx, "x", 0, mysqllock.AutoRenew, nil), mysqllock.ErrNotAcquired)
	})
}

// Do reports whether its work was done under the lock, also if Close ended the lock.
func TestDoWhileClosing(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		failed := errors.New("failed")
		for _, want := range []error{nil, failed} {
			l := e.locker(t)
			err := l.Do(ctx, "x", time.Second, mysqllock.AutoRenew, func(ctx context.Context) error {
				require.NoError(t, l.Close())
				require.ErrorIs(t, context.Cause(ctx), mysqllock.ErrClosed)
				return want
			})
			require.ErrorIs(t, err, mysqllock.ErrClosed)
			require.NotErrorIs(t, err, mysqllock.ErrLost)
			if want != nil {
				require.ErrorIs(t, err, want)
			}
		}
	})
}

func TestTokens(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, db := e.locker(t), e.db(t, "")
		var last uint64
		next := func(after string) {
			t.Helper()
			k := acquire(t, l, "x", mysqllock.AutoRenew)
			require.Greater(t, k.Token(), last, "after %s", after)
			last = k.Token()
			require.NoError(t, k.Unlock())
		}
		exec := func(query string) {
			t.Helper()
			_, err := db.Exec(query)
			require.NoError(t, err)
		}
		next("nothing")
		next("a release")
		n, err := l.Purge(ctx, 0)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		next("a purge")
		exec("DELETE FROM mysqllock WHERE name = 'x'")
		next("a deleted row")
		exec("TRUNCATE TABLE mysqllock")
		next("a truncated table")
		_, err = l.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		next("a force unlock")
		// A clock set back: what stands in the table is an hour ahead of it.
		last += 3600_000_000
		exec(fmt.Sprintf("UPDATE mysqllock SET token = %d WHERE name = 'x'", last))
		next("a clock set back")
		_, err = l.Purge(ctx, 0)
		require.NoError(t, err)
		next("a purge and a clock set back")
	})
}

// Tokens rise when two processes pass a hot lock on, and its holders can be guarded, although the
// token in the row may be above theirs.
func TestTokensOfAHotLock(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, "")
		var mu sync.Mutex // protects the following
		var last, turns, below uint64
		var all sync.WaitGroup
		for range 2 {
			l := e.locker(t)
			for range 16 {
				all.Go(func() {
					for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
						k, err := l.Lock(ctx, "x", mysqllock.AutoRenew)
						if !assert.NoError(t, err) {
							return
						}
						mu.Lock()
						assert.Greater(t, k.Token(), last)
						last = k.Token()
						turns++
						if turns%2000 == 0 {
							tx, err := db.Begin()
							assert.NoError(t, err)
							assert.NoError(t, k.Guard(ctx, tx))
							info, err := l.Inspect(ctx, "x")
							assert.NoError(t, err)
							assert.Less(t, k.Token(), info.Token+256)
							if k.Token() < info.Token {
								below++
							}
							assert.NoError(t, tx.Rollback())
						}
						mu.Unlock()
						assert.NoError(t, k.Unlock())
					}
				})
			}
		}
		all.Wait()
		t.Logf("%d turns; of those guarded, %d with a token below the row's", turns, below)
	})
}

// In a small pool, where no statement may wait for a row, a range of tokens goes on as well.
func TestTokensOfAHotLockInASmallPool(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		pool := e.db(t, "")
		pool.SetMaxOpenConns(2)
		l := newLocker(t, pool)
		var last atomic.Uint64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 100 {
					k, err := l.Lock(ctx, "x", mysqllock.AutoRenew)
					if !assert.NoError(t, err) {
						return
					}
					assert.Greater(t, k.Token(), last.Swap(k.Token()))
					assert.NoError(t, k.Unlock())
				}
			})
		}
		all.Wait()
	})
}

func TestPurge(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, db := e.locker(t), e.db(t, "")
		held := acquire(t, l, "held", mysqllock.AutoRenew)
		for i := range 3 {
			require.NoError(t, acquire(t, l, fmt.Sprint("released ", i), mysqllock.AutoRenew).Unlock())
		}
		requireOver(t, acquire(t, l, "expired", 10*time.Millisecond), mysqllock.ErrLost)
		time.Sleep(20 * time.Millisecond)
		n, err := l.Purge(ctx, time.Hour)
		require.NoError(t, err)
		require.Zero(t, n)
		// A row that a guard has locked is passed over, not waited for.
		guarded := acquire(t, l, "guarded", mysqllock.AutoRenew)
		tx, err := db.Begin()
		require.NoError(t, err)
		require.NoError(t, guarded.Guard(ctx, tx))
		require.NoError(t, guarded.Unlock())
		n, err = l.Purge(ctx, 0)
		require.NoError(t, err)
		require.EqualValues(t, 4, n)
		require.NoError(t, tx.Commit())
		n, err = l.Purge(ctx, -time.Hour)
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		require.NoError(t, held.Err())
		require.NoError(t, held.Unlock())
		// More than one batch.
		_, err = db.Exec("INSERT INTO mysqllock (name) WITH RECURSIVE s (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 999) SELECT CONCAT('row ', n) FROM s")
		require.NoError(t, err)
		n, err = l.Purge(ctx, time.Minute)
		require.NoError(t, err)
		require.EqualValues(t, 999, n)
	})
}

// Purge waits for no locked row, also where it deletes so many
// that the optimizer would rather read the whole table: while it waits, first grants
// wait for it.
func TestPurgeBesideALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		for i := range 60 {
			require.NoError(t, acquire(t, l, fmt.Sprint("idle", i), mysqllock.AutoRenew).Unlock())
		}
		db := e.db(t, "")
		_, err := db.Exec("ANALYZE TABLE mysqllock")
		require.NoError(t, err)
		tx, err := db.Begin()
		require.NoError(t, err)
		defer tx.Rollback()
		var name string
		require.NoError(t, tx.QueryRow("SELECT name FROM mysqllock WHERE name = 'idle7' FOR UPDATE").Scan(&name))
		time.Sleep(10 * time.Millisecond)
		purging, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		n, err := l.Purge(purging, time.Millisecond)
		require.NoError(t, err)
		require.EqualValues(t, 59, n)
	})
}

// Tokens must not fall when rows are purged while they are taken anew.
func TestPurgeRace(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for _, params := range []string{"", isolation(e, "READ-COMMITTED")} {
			purger := newLocker(t, e.db(t, params))
			const enough = 50
			start := time.Now()
			var purges, turns atomic.Int64
			// A busy machine needs longer than 2 s.
			racing := func() bool {
				took := time.Since(start)
				return took < 2*time.Second || took < time.Minute && (turns.Load() <= enough || purges.Load() <= enough)
			}
			var wg sync.WaitGroup
			wg.Go(func() {
				for racing() {
					_, err := purger.Purge(ctx, 0)
					if !assert.NoError(t, err) {
						return
					}
					purges.Add(1)
				}
			})
			var mu sync.Mutex
			last := map[string]uint64{}
			for range 6 {
				l := newLocker(t, e.db(t, params), mysqllock.WithPollInterval(10*time.Millisecond))
				wg.Go(func() {
					for i := 0; racing(); i++ {
						name := fmt.Sprint("race ", i%2)
						k, err := l.TryLock(ctx, name, 0, mysqllock.AutoRenew)
						if errors.Is(err, mysqllock.ErrNotAcquired) {
							continue
						}
						if !assert.NoError(t, err) {
							return
						}
						mu.Lock()
						assert.Greater(t, k.Token(), last[name])
						last[name] = k.Token()
						mu.Unlock()
						turns.Add(1)
						assert.NoError(t, k.Unlock())
					}
				})
			}
			wg.Wait()
			t.Log("turns", turns.Load(), "purges", purges.Load())
			require.Greater(t, turns.Load(), int64(enough))
			require.Greater(t, purges.Load(), int64(enough))
		}
	})
}

// The first grant of a name waits for a Purge under way, which may be about to
// raise the token that it must exceed.
func TestFirstGrantWaitsForPurge(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		for i, params := range []string{"", isolation(e, "READ-COMMITTED")} {
			tx, err := e.db(t, "").Begin()
			require.NoError(t, err)
			defer tx.Rollback()
			var mark uint64
			require.NoError(t, tx.QueryRow("SELECT token FROM mysqllock WHERE name = '' FOR UPDATE").Scan(&mark))
			l := newLocker(t, e.db(t, params))
			granted := make(chan *mysqllock.Lock, 1)
			go func() {
				k, err := l.TryLock(ctx, fmt.Sprint("new ", i), 20*time.Second, mysqllock.AutoRenew)
				assert.NoError(t, err)
				granted <- k
			}()
			select {
			case <-granted:
				require.FailNow(t, "it did not wait")
			case <-time.After(300 * time.Millisecond): // enough for one that does not
			}
			mark = max(mark, uint64(time.Now().Add(time.Hour).UnixMicro())) + 1
			_, err = tx.Exec("UPDATE mysqllock SET token = ? WHERE name = ''", mark)
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
			k := get(t, granted)
			require.Greater(t, k.Token(), mark)
			require.NoError(t, k.Unlock())
		}
	})
}

func TestClose(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l, other := e.locker(t), e.locker(t)
		var held []*mysqllock.Lock
		for i := range 20 {
			held = append(held, acquire(t, l, fmt.Sprint("held ", i), mysqllock.AutoRenew))
		}
		acquire(t, other, "x", mysqllock.AutoRenew)
		waits := make(chan error, 3)
		for i := range cap(waits) {
			go func() {
				name := "x"
				if i == 2 {
					name = "held 0"
				}
				_, err := l.Lock(ctx, name, mysqllock.AutoRenew)
				waits <- err
			}()
		}
		eventually(t, "waiters", func() bool { return l.Stats().Waiting == 3 })
		require.NoError(t, l.Close())
		for range cap(waits) {
			require.ErrorIs(t, <-waits, mysqllock.ErrClosed)
		}
		for i, k := range held {
			requireOver(t, k, mysqllock.ErrClosed)
			require.ErrorIs(t, k.Unlock(), mysqllock.ErrClosed)
			require.ErrorIs(t, k.Extend(ctx, time.Minute), mysqllock.ErrClosed)
			requireHeld(t, other, fmt.Sprint("held ", i), false)
		}
		require.NoError(t, l.Close())
		_, err := l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrClosed)
		_, err = l.Inspect(ctx, "x")
		require.ErrorIs(t, err, mysqllock.ErrClosed)
		require.ErrorIs(t, l.CreateTable(ctx), mysqllock.ErrClosed)
		require.Zero(t, l.Stats().Held)
	})
}

// Many processes may create the table, and use it, at once.
func TestCreateTableAtOnce(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		_, err := e.db(t, "").Exec("DROP TABLE mysqllock")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 20 {
			l := e.locker(t)
			wg.Go(func() {
				assert.NoError(t, l.CreateTable(ctx))
				assert.NoError(t, l.Do(ctx, "x", time.Minute, mysqllock.AutoRenew, func(context.Context) error { return nil }))
			})
		}
		wg.Wait()
	})
}

func TestWaitersOfOneProcess(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := e.locker(t)
		k := acquire(t, l, "x", mysqllock.AutoRenew)
		const n = 1000
		turns := make(chan int, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				k, err := l.TryLock(ctx, "x", time.Minute, mysqllock.AutoRenew)
				if assert.NoError(t, err) {
					turns <- i
					assert.NoError(t, k.Unlock())
				}
			})
			eventually(t, "waiting", func() bool { return l.Stats().Waiting == i+1 })
		}
		before := l.Stats().Statements
		time.Sleep(1500 * time.Millisecond)
		require.LessOrEqual(t, l.Stats().Statements-before, int64(1), "nobody asks while the lock is held in the process")
		require.NoError(t, k.Unlock())
		for i := range n {
			require.Equal(t, i, <-turns, "first come, first served")
		}
		wg.Wait()
		require.Zero(t, l.Stats().Waiting)
		require.LessOrEqual(t, l.Stats().Statements-before, int64(2*n+3), "an acquire and a release each")
	})
}

// isolation returns the DSN parameter for an isolation level.
func isolation(e env, level string) string {
	if e.server.Kind == "mariadb" {
		return "tx_isolation=%27" + level + "%27"
	}
	return "transaction_isolation=%27" + level + "%27"
}

// What an observer reports agrees with the table, and with what the caller sees.
func TestObserved(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		acquires, holds := make(chan mysqllock.AcquireInfo, 100), make(chan mysqllock.HoldInfo, 100)
		renewals := make(chan mysqllock.RenewalInfo, 100)
		type key struct{}
		start := time.Now()
		l := e.locker(t, mysqllock.WithLease(time.Second), mysqllock.WithObserver(mysqllock.Observer{
			AcquireStart: func(ctx context.Context, name string) context.Context { return context.WithValue(ctx, key{}, name) },
			AcquireEnd: func(ctx context.Context, i mysqllock.AcquireInfo) {
				assert.Equal(t, i.Name, ctx.Value(key{}))
				acquires <- i
			},
			HoldEnd: func(ctx context.Context, i mysqllock.HoldInfo) {
				assert.Equal(t, i.Name, ctx.Value(key{}))
				holds <- i
			},
			Renewal: func(i mysqllock.RenewalInfo) { renewals <- i },
		}))

		a := acquire(t, l, "x", mysqllock.AutoRenew)
		got := <-acquires
		require.LessOrEqual(t, got.Waited, time.Since(start))
		waited := got.Waited
		got.Waited = 0
		require.Equal(t, mysqllock.AcquireInfo{Name: "x", Mode: "exclusive", Token: requireHeld(t, l, "x", true).Token}, got)
		require.Equal(t, mysqllock.RenewalInfo{Locks: 1, Renewed: 1}, <-renewals)

		other := e.locker(t)
		_, err := l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.Equal(t, "not_acquired", (<-acquires).Outcome())
		require.NoError(t, a.Unlock())
		hold := <-holds
		require.Greater(t, hold.Held+waited, 300*time.Millisecond, "it was renewed a third of a second after the request")
		hold.Held = 0
		require.Equal(t, mysqllock.HoldInfo{Name: "x", Mode: "exclusive", Token: a.Token()}, hold)

		b := acquire(t, l, "x", mysqllock.AutoRenew)
		_, err = other.ForceUnlock(ctx, "x")
		require.NoError(t, err)
		requireOver(t, b, mysqllock.ErrLost)
		hold = <-holds
		require.Equal(t, "lost", hold.Outcome())
		require.Equal(t, b.Token(), hold.Token)
		require.ErrorIs(t, b.Unlock(), mysqllock.ErrLost)
		require.Empty(t, holds, "a hold ends once")
	})
}
