//go:build unix

// Package failover tests locks through the loss of the primary, on two MySQL servers with replication,
// on three with Group Replication, and on a Galera cluster. It also tests locks behind proxies.
// docs/failover.md explains what is guaranteed, and names the test for each statement.
package failover_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

var ctx = context.Background()

func TestMain(m *testing.M) { mysqltest.Main(m) }

// open opens a pool of connections to the address of a server, or to the virtual address that the
// application uses.
func open(t testing.TB, addr, params string) *sql.DB {
	db, err := sql.Open("mysql", "root@tcp("+addr+")/app?"+params)
	require.NoError(t, err)
	db.SetMaxIdleConns(10)
	t.Cleanup(func() { db.Close() })
	return db
}

func newLocker(t testing.TB, db *sql.DB, opts ...mysqllock.Option) *mysqllock.Locker {
	l, err := mysqllock.New(db, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() }) // an error is expected: the locks on a dead server cannot be released
	return l
}

// createTables creates the table of locks, and the application's table that they protect.
func createTables(t testing.TB, s *mysqltest.Server) {
	t.Helper()
	exec(t, s, "CREATE DATABASE app")
	require.NoError(t, newLocker(t, open(t, s.Addr(), "")).CreateTable(ctx))
	exec(t, s,
		"CREATE TABLE app.register (name VARCHAR(64) PRIMARY KEY, token BIGINT UNSIGNED NOT NULL, writer VARCHAR(64) NOT NULL)",
		"INSERT INTO app.register VALUES ('x', 0, '')")
}

func acquire(t testing.TB, l *mysqllock.Locker, name string) *mysqllock.Lock {
	t.Helper()
	k, err := l.TryLock(ctx, name, 10*time.Second, mysqllock.AutoRenew)
	require.NoError(t, err)
	return k
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, time.Minute, 5*time.Millisecond, what)
}

func exec(t testing.TB, s *mysqltest.Server, statements ...string) {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN("", ""))
	require.NoError(t, err)
	defer db.Close()
	for _, statement := range statements {
		_, err := db.Exec(statement)
		require.NoError(t, err, statement)
	}
}

// A checker records grants, and checks mutual exclusion and the order of tokens.
type checker struct {
	mu          sync.Mutex                 // guards the following
	latest      map[string]*mysqllock.Lock // by name
	last        time.Time                  // of the last grant
	gap         time.Duration              // the longest time without a grant
	grants      int
	overlapping []string // names granted while an earlier holder still trusted its lease
	notRising   []string // tokens that did not rise
}

// granted records a grant. The goroutine that acquired k must call it before it unlocks k.
func (g *checker) granted(k *mysqllock.Lock) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); g.grants > 0 {
		g.gap, g.last = max(g.gap, now.Sub(g.last)), now
	} else {
		g.latest, g.last = map[string]*mysqllock.Lock{}, now
	}
	g.grants++
	if before := g.latest[k.Name()]; before != nil {
		if before.Err() == nil {
			g.overlapping = append(g.overlapping, k.Name())
		}
		if k.Token() <= before.Token() {
			g.notRising = append(g.notRising, fmt.Sprint(k.Name(), ": ", before.Token(), ", then ", k.Token()))
		}
	}
	g.latest[k.Name()] = k
}

func (g *checker) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.grants
}

// traffic acquires and releases locks continuously, in two goroutines for each Locker.
type traffic struct {
	checker
	cancel  context.CancelFunc
	workers sync.WaitGroup
	failed  sync.Map // errors of failed calls; the values are their numbers, *atomic.Int64
}

func startTraffic(lockers []*mysqllock.Locker, names int) *traffic {
	tr := &traffic{}
	var ctx context.Context
	ctx, tr.cancel = context.WithCancel(context.Background())
	for i, l := range lockers {
		for j := range 2 {
			tr.workers.Go(func() {
				for n := i + j; ctx.Err() == nil; n++ {
					tr.cycle(ctx, l, fmt.Sprint("traffic ", n%names))
				}
			})
		}
	}
	return tr
}

// cycle acquires and releases a lock.
func (tr *traffic) cycle(ctx context.Context, l *mysqllock.Locker, name string) {
	k, err := l.TryLock(ctx, name, time.Minute, mysqllock.AutoRenew)
	if err != nil {
		if ctx.Err() == nil {
			tr.countError(err)
		}
		return
	}
	tr.granted(k)
	time.Sleep(time.Millisecond) // its work
	if err := k.Unlock(); err != nil {
		tr.countError(err)
	}
}

func (tr *traffic) countError(err error) {
	n, _ := tr.failed.LoadOrStore(err.Error(), new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// awaitGrants waits for some grants, and returns how long they took.
func (tr *traffic) awaitGrants(t testing.TB) time.Duration {
	t.Helper()
	start, n := time.Now(), tr.count()
	eventually(t, "grants", func() bool { return tr.count() > n+20 })
	return time.Since(start)
}

// stop ends the traffic, and requires that the guarantees have held.
func (tr *traffic) stop(t testing.TB) {
	t.Helper()
	tr.cancel()
	tr.workers.Wait()
	t.Logf("%d grants; the longest time without one was %v", tr.grants, tr.gap.Round(time.Millisecond))
	tr.failed.Range(func(err, n any) bool {
		t.Logf("%d × %v", n.(*atomic.Int64).Load(), err)
		return true
	})
	require.Empty(t, tr.overlapping, "granted while an earlier holder trusted its lease")
	require.Empty(t, tr.notRising, "tokens that did not rise")
}

// awaitWrites waits until a server accepts writes.
func awaitWrites(t testing.TB, s *mysqltest.Server) {
	db := open(t, s.Addr(), "")
	eventually(t, "a server that accepts writes", func() bool {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := db.ExecContext(ctx, "INSERT INTO register VALUES ('written', 1, '') ON DUPLICATE KEY UPDATE token = token + 1")
		return err == nil
	})
}
