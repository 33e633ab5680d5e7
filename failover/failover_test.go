//go:build unix

// Package failover tests what becomes of locks when the primary is lost: on two
// MySQL servers with replication, on three with Group Replication, and on a Galera
// cluster; and what goes through proxies. docs/failover.md says what holds and what
// cannot, and names the test that shows each.
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

// open opens a pool of connections to an address: a server's, or that of the
// switch which an application knows alone.
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
	t.Cleanup(func() { l.Close() }) // what died with a server cannot be released
	return l
}

// prepare makes the tables of the application: of locks, and of what they protect.
func prepare(t testing.TB, s *mysqltest.Server) {
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

// A ledger writes down who got which lock, and finds what must not happen.
type ledger struct {
	mu     sync.Mutex // guards the following
	latest map[string]*mysqllock.Lock
	last   time.Time     // of the last grant
	gap    time.Duration // the longest time without a grant
	grants int
	double []string // names granted while an earlier holder still trusted its lease
	fallen []string // tokens that did not rise
}

// granted must be called by the goroutine that acquired k, before it unlocks k.
func (g *ledger) granted(k *mysqllock.Lock) {
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
			g.double = append(g.double, k.Name())
		}
		if k.Token() <= before.Token() {
			g.fallen = append(g.fallen, fmt.Sprint(k.Name(), ": ", before.Token(), ", then ", k.Token()))
		}
	}
	g.latest[k.Name()] = k
}

func (g *ledger) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.grants
}

// Traffic is an application that takes locks in turns and gives them back, on
// each Locker in two goroutines.
type traffic struct {
	ledger
	cancel  context.CancelFunc
	workers sync.WaitGroup
	failed  sync.Map // what was said of calls that failed: the error, how often (*atomic.Int64)
}

func startTraffic(lockers []*mysqllock.Locker, names int) *traffic {
	tr := &traffic{}
	var ctx context.Context
	ctx, tr.cancel = context.WithCancel(context.Background())
	for i, l := range lockers {
		for j := range 2 {
			tr.workers.Go(func() {
				for turn := i + j; ctx.Err() == nil; turn++ {
					tr.turn(ctx, l, fmt.Sprint("traffic ", turn%names))
				}
			})
		}
	}
	return tr
}

func (tr *traffic) turn(ctx context.Context, l *mysqllock.Locker, name string) {
	k, err := l.TryLock(ctx, name, time.Minute, mysqllock.AutoRenew)
	if err != nil {
		if ctx.Err() == nil {
			tr.note(err)
		}
		return
	}
	tr.granted(k)
	time.Sleep(time.Millisecond) // its work
	if err := k.Unlock(); err != nil {
		tr.note(err)
	}
}

func (tr *traffic) note(err error) {
	n, _ := tr.failed.LoadOrStore(err.Error(), new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// flows waits until locks are granted, and returns how long some took.
func (tr *traffic) flows(t testing.TB) time.Duration {
	t.Helper()
	start, n := time.Now(), tr.count()
	eventually(t, "grants", func() bool { return tr.count() > n+20 })
	return time.Since(start)
}

// stop ends the traffic and holds it to what is promised.
func (tr *traffic) stop(t testing.TB) {
	t.Helper()
	tr.cancel()
	tr.workers.Wait()
	t.Logf("%d grants, none for %v at most", tr.grants, tr.gap.Round(time.Millisecond))
	tr.failed.Range(func(err, n any) bool {
		t.Logf("%d × %v", n.(*atomic.Int64).Load(), err)
		return true
	})
	require.Empty(t, tr.double, "granted while an earlier holder trusted its lease")
	require.Empty(t, tr.fallen, "tokens that did not rise")
}

// awaitWrites waits until a server executes writes.
func awaitWrites(t testing.TB, s *mysqltest.Server) {
	db := open(t, s.Addr(), "")
	eventually(t, "a server that writes", func() bool {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err := db.ExecContext(ctx, "INSERT INTO register VALUES ('written', 1, '') ON DUPLICATE KEY UPDATE token = token + 1")
		return err == nil
	})
}
