package mysqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// settingGroups are settings of scripts/settings.txt that one server has together, and flags under
// which other tests cannot run: those that leave transactions idle, or have proxies or large pools.
var settingGroups = map[string]struct {
	settings string
	further  []string
}{
	"strict": {
		settings: "time-limit short-lock-wait serializable minimal-row-image ansi primary-key",
		further:  []string{"--wait-timeout=5"},
	},
	"shared": {
		settings: "no-deadlock-detection long-lock-wait read-committed lower-case thread-pool",
		further:  []string{"--require-secure-transport=ON", "--max-user-connections=20"},
	},
}

// serverSettings reads the flags of scripts/settings.txt, by the names of the settings.
func serverSettings(t *testing.T) map[string][]string {
	text, err := os.ReadFile("scripts/settings.txt")
	require.NoError(t, err)
	settings := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if words := strings.Fields(line); words[0] != "#" {
			settings[words[0]] = words[1:]
		}
	}
	return settings
}

// What the library promises does not depend on how a DBA has set the server.
func TestServerSettings(t *testing.T) {
	t.Parallel()
	settings := serverSettings(t)
	flags := map[string][]string{}
	for group, g := range settingGroups {
		flags[group] = g.further
		for name := range strings.FieldsSeq(g.settings) {
			require.Contains(t, settings, name)
			flags[group] = append(flags[group], settings[name]...)
			delete(settings, name)
		}
	}
	require.Empty(t, settings, "in no group")
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for group := range settingGroups {
				t.Run(group, func(t *testing.T) {
					t.Parallel()
					server := mysqltest.New(t, kind, flags[group]...)
					testPromises(t, env{server, mysqltest.NewDatabase(t, server)})
				})
			}
		})
	}
}

// testPromises lets two processes with small pools, of an account of their own, use locks of each kind.
func testPromises(t *testing.T, e env) {
	user := e.confined(t)
	process := func(pool int, opts ...mysqllock.Option) (*mysqllock.Locker, *sql.DB) {
		db := openAs(t, user)
		db.SetMaxOpenConns(pool)
		return newLocker(t, db, opts...), db
	}
	a, db := process(6)
	b, _ := process(6)
	keeper, _ := process(2, mysqllock.WithLease(2*time.Second))
	idle, _ := process(2)
	require.NoError(t, a.CreateTable(ctx))
	began := time.Now()
	kept := acquire(t, keeper, "kept", mysqllock.AutoRenew)
	require.NoError(t, acquire(t, idle, "idle", mysqllock.AutoRenew).Unlock())

	for _, promise := range []struct {
		what string
		test func(t *testing.T)
	}{
		{"handover", func(t *testing.T) { testHandovers(t, a, b) }},
		{"direct", func(t *testing.T) { testGranted(t, e, a, b) }},
		{"shared", func(t *testing.T) { testSharedInSession(t, a, b, db, "shared") }},
		{"permits", func(t *testing.T) { testPermitsInSession(t, a, b, db, "permits") }},
		{"many", func(t *testing.T) { testManyLocks(t, a, b) }},
		{"guard", func(t *testing.T) { testLongGuards(t, a, b, keeper, db) }},
		{"DoTx", func(t *testing.T) { testLongDoTx(t, e.newAccount(t), a, b) }},
		{"locked row", func(t *testing.T) { testLockedRow(t, e, a, b) }},
		{"batches", func(t *testing.T) { testBatches(t, a, b) }},
	} {
		t.Run(promise.what, promise.test)
	}

	// More than three leases, and than what a connection may be idle.
	time.Sleep(time.Until(began.Add(6500 * time.Millisecond)))
	require.NoError(t, kept.Err())
	require.NoError(t, kept.Unlock())
	require.NoError(t, acquire(t, idle, "idle", mysqllock.AutoRenew).Unlock())
	for l, lost := range map[*mysqllock.Locker]int64{a: 1, b: 0, keeper: 1, idle: 0} {
		require.Equal(t, lost, l.Stats().Lost, "by force")
		require.Zero(t, l.Stats().Unavailable)
	}
	testClose(t, a, b)
}

// testHandovers lets three goroutines of each process take a lock in turn.
func testHandovers(t *testing.T, ls ...*mysqllock.Locker) {
	var wg sync.WaitGroup
	for _, l := range ls {
		for range 3 {
			wg.Go(func() {
				for range 15 {
					asked := time.Now()
					k, err := l.TryLock(ctx, "handed over", 20*time.Second, mysqllock.AutoRenew)
					if !assert.NoError(t, err) {
						return
					}
					assert.Less(t, time.Since(asked), 2500*time.Millisecond, "more than a poll")
					time.Sleep(2 * time.Millisecond) // so that the others wait
					assert.NoError(t, k.Unlock())
				}
			})
		}
	}
	wg.Wait()
}

// testGranted lets a release grant a lock to the process that waits.
func testGranted(t *testing.T, e env, a, b *mysqllock.Locker) {
	warm(t, "direct", a, b)
	for round := 1; ; round++ {
		k, got := handTo(t, e, "direct", a, func() <-chan *mysqllock.Lock { return waiting(t, b, "direct", 1) })
		require.NoError(t, k.Unlock())
		next := get(t, got)
		direct := granted(t, a, "direct")
		require.NoError(t, next.Unlock())
		if direct {
			return
		}
		require.Less(t, round, 10, "no release grants")
	}
}

func testManyLocks(t *testing.T, a, b *mysqllock.Locker) {
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprint("many ", i))
	}
	for range 2 { // without rows, and with rows
		s, err := a.TryLockAll(ctx, names, 10*time.Second, mysqllock.AutoRenew)
		require.NoError(t, err)
		_, err = b.TryLockAll(ctx, names[25:], 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, s.Unlock())
	}
}

// longTransaction is longer than the time limit of a statement, and than a lock wait may be.
const longTransaction = 1200 * time.Millisecond

// testLongGuards makes an acquire, and ForceUnlock, wait for a guard. The process with the short lease
// soon learns of a loss by force.
func testLongGuards(t *testing.T, a, b, short *mysqllock.Locker, db *sql.DB) {
	begin := func(k *mysqllock.Lock) *sql.Tx {
		tx, err := db.Begin()
		require.NoError(t, err)
		t.Cleanup(func() { tx.Rollback() })
		require.NoError(t, k.Guard(ctx, tx))
		return tx
	}
	k := acquire(t, a, "guarded", mysqllock.AutoRenew)
	tx := begin(k)
	require.NoError(t, k.Unlock())
	next := try(func() (*mysqllock.Lock, error) {
		return b.TryLock(ctx, "guarded", 20*time.Second, mysqllock.AutoRenew)
	})
	next.requireWaits(t, longTransaction)
	require.NoError(t, tx.Commit())
	require.NoError(t, next.lock(t).Unlock())

	k = acquire(t, short, "forced", mysqllock.AutoRenew)
	tx = begin(k)
	forced := make(chan error, 1)
	go func() {
		freed, err := b.ForceUnlock(ctx, "forced")
		if err == nil && !freed {
			err = errors.New("nobody had it")
		}
		forced <- err
	}()
	time.Sleep(longTransaction)
	require.Empty(t, forced)
	require.NoError(t, k.Err())
	require.NoError(t, tx.Commit())
	require.NoError(t, <-forced)
	requireOver(t, k, mysqllock.ErrLost)
	requireHeld(t, a, "forced", false)
}

// testLongDoTx commits a long transaction, for which another process waits.
func testLongDoTx(t *testing.T, balance account, a, b *mysqllock.Locker) {
	var next *acquiring
	require.NoError(t, a.DoTx(ctx, "tx", 5*time.Second, mysqllock.AutoRenew, nil, func(held context.Context, tx *sql.Tx) error {
		next = try(func() (*mysqllock.Lock, error) { return b.TryLock(ctx, "tx", 20*time.Second, mysqllock.AutoRenew) })
		if err := balance.add(held, tx); err != nil {
			return err
		}
		next.requireWaits(t, longTransaction)
		return balance.add(held, tx)
	}))
	balance.require(t, 2)
	require.NoError(t, next.lock(t).Unlock())
}

// testLockedRow asks for a free lock whose row a transaction has locked.
func testLockedRow(t *testing.T, e env, a, b *mysqllock.Locker) {
	require.NoError(t, acquire(t, a, "locked", mysqllock.AutoRenew).Unlock())
	tx, err := e.db(t, "").Begin()
	require.NoError(t, err)
	defer tx.Rollback()
	var name string
	require.NoError(t, tx.QueryRow("SELECT name FROM mysqllock WHERE name = 'locked' FOR UPDATE").Scan(&name))
	waits := try(func() (*mysqllock.Lock, error) {
		return b.TryLock(ctx, "locked", longTransaction, mysqllock.AutoRenew)
	})
	start := time.Now()
	_, err = a.TryLock(ctx, "locked", 0, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
	require.Less(t, time.Since(start), time.Second)
	<-waits.end
	require.ErrorIs(t, waits.err, mysqllock.ErrNotAcquired)
	require.NoError(t, tx.Rollback())
	require.NoError(t, acquire(t, a, "locked", mysqllock.AutoRenew).Unlock())
}

// testBatches makes both processes ask for the same 32 locks at once, first without rows.
func testBatches(t *testing.T, ls ...*mysqllock.Locker) {
	for range 2 {
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				k, err := ls[i%2].TryLock(ctx, fmt.Sprint("batch ", i/2), 20*time.Second, mysqllock.AutoRenew)
				if assert.NoError(t, err) {
					assert.NoError(t, k.Unlock())
				}
			})
		}
		wg.Wait()
	}
}

// testClose closes a process that holds a lock, and waits for another.
func testClose(t *testing.T, a, b *mysqllock.Locker) {
	theirs, ours := acquire(t, a, "theirs", mysqllock.AutoRenew), acquire(t, b, "ours", mysqllock.AutoRenew)
	waits := try(func() (*mysqllock.Lock, error) { return b.Lock(ctx, "theirs", mysqllock.AutoRenew) })
	requireWaiting(t, b, 1)
	start := time.Now()
	require.NoError(t, b.Close())
	require.Less(t, time.Since(start), 10*time.Second)
	<-waits.end
	require.ErrorIs(t, waits.err, mysqllock.ErrClosed)
	requireOver(t, ours, mysqllock.ErrClosed)
	requireHeld(t, a, "ours", false)
	require.NoError(t, theirs.Unlock())
	require.NoError(t, a.Close())
}

// timeLimit is the parameter that ends the statements of a session.
func timeLimit(e env, millis int) string {
	if e.server.Kind == "mysql" {
		return fmt.Sprint("max_execution_time=", millis)
	}
	return fmt.Sprint("max_statement_time=", float64(millis)/1000)
}

// A time limit of the session ends no statement of the library that waits for a locked row: Guard
// failed, and on MariaDB an acquire returned ErrUnavailable.
func TestTimeLimitBehindALockedRow(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db := e.db(t, timeLimit(e, 200))
		l := newLocker(t, db)
		for what, c := range map[string]struct {
			released bool
			do       func(k *mysqllock.Lock) error
		}{
			"acquire": {true, func(k *mysqllock.Lock) error {
				_, err := l.TryLock(ctx, k.Name(), 300*time.Millisecond, time.Minute)
				if !errors.Is(err, mysqllock.ErrNotAcquired) {
					return fmt.Errorf("behind a locked row: %w", err)
				}
				_, err = l.TryLock(ctx, k.Name(), 20*time.Second, time.Minute)
				return err
			}},
			"guard": {false, func(k *mysqllock.Lock) error {
				tx, err := db.Begin()
				if err != nil {
					return err
				}
				defer tx.Rollback()
				return k.Guard(ctx, tx)
			}},
			"extend": {false, func(k *mysqllock.Lock) error { return k.Extend(ctx, time.Hour) }},
			"unlock": {false, (*mysqllock.Lock).Unlock},
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				k := acquire(t, l, what, time.Minute)
				if c.released {
					require.NoError(t, k.Unlock())
				}
				tx, err := e.db(t, "").Begin()
				require.NoError(t, err)
				defer tx.Rollback()
				var name string
				require.NoError(t, tx.QueryRow("SELECT name FROM mysqllock FORCE INDEX (guard) WHERE token = ? AND name = ? FOR UPDATE", k.Token(), what).Scan(&name))
				ended := make(chan error, 1)
				go func() { ended <- c.do(k) }()
				time.Sleep(700 * time.Millisecond)
				require.Empty(t, ended, "it does not wait")
				require.NoError(t, tx.Rollback())
				require.NoError(t, <-ended)
			})
		}
	})
}

// Nor does it end what operators do while a backup has the table locked.
func TestTimeLimitOfOperators(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		l := newLocker(t, e.db(t, timeLimit(e, 200)))
		acquire(t, e.locker(t), "x", time.Minute)
		_, err := l.Inspect(ctx, "x") // the session was looked at
		require.NoError(t, err)
		conn, err := e.db(t, "").Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(ctx, "LOCK TABLES mysqllock WRITE")
		require.NoError(t, err)
		var wg sync.WaitGroup
		for what, do := range map[string]func() error{
			"Inspect":     func() error { _, err := l.Inspect(ctx, "x"); return err },
			"List":        func() error { _, err := l.List(ctx); return err },
			"Holders":     func() error { _, err := l.Semaphore("x", 1).Holders(ctx); return err },
			"ForceUnlock": func() error { _, err := l.ForceUnlock(ctx, "x"); return err },
			"Purge":       func() error { _, err := l.Purge(ctx, time.Hour); return err },
			"CreateTable": func() error { return l.CreateTable(ctx) },
		} {
			wg.Go(func() { assert.NoError(t, do(), what) })
		}
		time.Sleep(500 * time.Millisecond)
		_, err = conn.ExecContext(ctx, "UNLOCK TABLES")
		require.NoError(t, err)
		wg.Wait()
	})
}
