package mysqllock_test

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// pairs is how many acquires and releases the tests of leaks make, ten times
// the waits: MYSQLLOCK_LEAKS, or what a suite can bear.
func pairs(t *testing.T) int {
	s := os.Getenv("MYSQLLOCK_LEAKS")
	if s == "" {
		return 2000
	}
	n, err := strconv.Atoi(s)
	require.NoError(t, err, "MYSQLLOCK_LEAKS")
	return n
}

// A footprint is what work can leave behind.
type footprint struct {
	goroutines  int
	heap        int64 // bytes
	connections int   // of the database's clients, except this query's
	prepared    int   // statements on the server
	rows        int   // of the table, but for the high-water row
}

func (p footprint) String() string {
	return fmt.Sprintf("%d goroutines, %d KiB of heap, %d connections, %d prepared statements, %d rows",
		p.goroutines, p.heap/1024, p.connections, p.prepared, p.rows)
}

func takeFootprint(t *testing.T, probe *sql.DB) (p footprint) {
	t.Helper()
	runtime.GC()
	runtime.GC() // what a finalizer gave up
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	p.goroutines, p.heap = runtime.NumGoroutine(), int64(m.HeapAlloc)
	p.prepared = preparedOn(t, probe)
	require.NoError(t, probe.QueryRow("SELECT COUNT(*) - 1 FROM information_schema.processlist WHERE db = DATABASE()").Scan(&p.connections))
	// A process that waited has the row of a session, which it ends when it closes.
	_, err := newLocker(t, probe).Purge(ctx, 0)
	require.NoError(t, err)
	require.NoError(t, probe.QueryRow("SELECT COUNT(*) FROM mysqllock WHERE name <> ''").Scan(&p.rows))
	return p
}

// settled returns the footprint when the server has noticed that pools were
// closed, and the goroutines of their connections have ended.
func settled(t *testing.T, probe *sql.DB) (p footprint) {
	t.Helper()
	eventually(t, "connections stay open", func() bool { return takeFootprint(t, probe).connections == 0 })
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		last := p.goroutines
		if p = takeFootprint(t, probe); p.goroutines == last {
			break
		}
	}
	return p
}

// preparedOn returns how many prepared statements the server has.
func preparedOn(t *testing.T, probe *sql.DB) (n int) {
	t.Helper()
	var name string
	require.NoError(t, probe.QueryRow("SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'").Scan(&name, &n))
	return n
}

// onEachAlone is onEach with one server after the other, and no other test
// beside: what the process and the server count is ours.
func onEachAlone(t *testing.T, test func(t *testing.T, e env, probe *sql.DB)) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			s := mysqltest.Shared(t, kind)
			e := env{server: s, database: mysqltest.NewDatabase(t, s)}
			probe := e.db(t, "")
			probe.SetMaxOpenConns(1)
			require.NoError(t, newLocker(t, probe).CreateTable(ctx))
			test(t, e, probe)
		})
	}
}

// Work leaves nothing behind: what a process, the server and the table have in
// use after much of it is what they had after little.
func TestLeaks(t *testing.T) {
	onEachAlone(t, func(t *testing.T, e env, probe *sql.DB) {
		n := pairs(t)
		e.work(t, probe, 300, min(n/10, 1000)) // what the runtime keeps, of as many goroutines
		before := settled(t, probe)
		start := time.Now()
		e.work(t, probe, n, n/10)
		t.Logf("%d pairs and %d waits in %v", n, n/10, time.Since(start).Round(100*time.Millisecond))
		after := settled(t, probe)
		t.Logf("before: %v", before)
		t.Logf("after:  %v", after)
		require.LessOrEqual(t, after.goroutines, before.goroutines)
		// The runtime keeps half a KiB of each goroutine that ever ran at the same
		// time, and timers that go off together start one each.
		require.Less(t, after.heap-before.heap, int64(2<<20))
		require.Zero(t, after.prepared)
		require.Zero(t, after.rows)
	})
}

// work acquires and releases, waits in vain, and ends all that it began.
func (e env) work(t *testing.T, probe *sql.DB, pairs, waits int) {
	pool := func(size int) *sql.DB {
		db, err := sql.Open("mysql", e.server.DSN(e.database, ""))
		require.NoError(t, err)
		db.SetMaxOpenConns(size)
		db.SetMaxIdleConns(size)
		return db
	}
	locker := func(db *sql.DB) *mysqllock.Locker { // without t, which would keep it
		l, err := mysqllock.New(db)
		require.NoError(t, err)
		return l
	}
	busy, here, there := pool(16), pool(8), pool(8)
	acquirer, holder, waiter := locker(busy), locker(here), locker(there)
	const names, goroutines = 10_000, 8
	var wg sync.WaitGroup
	var turns atomic.Int64
	for range goroutines {
		wg.Go(func() {
			for i := turns.Add(1); i <= int64(pairs); i = turns.Add(1) {
				lease := mysqllock.AutoRenew
				if i%2 == 0 {
					lease = time.Minute
				}
				k, err := acquirer.TryLock(ctx, fmt.Sprint("pair ", i%names), time.Minute, lease)
				if assert.NoError(t, err) {
					assert.NoError(t, k.Unlock())
				}
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, pairs, acquirer.Stats().Acquired)

	// Half of the waits are for another process, half for another goroutine.
	var held []*mysqllock.Lock
	for i := range 20 {
		held = append(held, acquire(t, holder, fmt.Sprint("held ", i), mysqllock.AutoRenew))
	}
	turns.Store(0)
	for range min(waits, 1000) {
		wg.Go(func() {
			for i := turns.Add(1); i <= int64(waits); i = turns.Add(1) {
				l := waiter
				if i%2 == 0 {
					l = holder
				}
				_, err := l.TryLock(ctx, held[i%20].Name(), time.Duration(1+i%40)*time.Millisecond, mysqllock.AutoRenew)
				if !errors.Is(err, mysqllock.ErrUnavailable) { // 1,000 ask at once
					assert.ErrorIs(t, err, mysqllock.ErrNotAcquired)
				}
			}
		})
	}
	wg.Wait()
	for _, k := range held {
		require.NoError(t, k.Unlock())
	}
	_, err := acquirer.Purge(ctx, 0)
	require.NoError(t, err)
	for _, l := range []*mysqllock.Locker{acquirer, holder, waiter} {
		stats := l.Stats()
		require.Zero(t, stats.Held)
		require.Zero(t, stats.Waiting)
		require.NoError(t, l.Close())
	}
	for _, db := range []*sql.DB{busy, here, there} {
		require.Zero(t, db.Stats().InUse)
		require.LessOrEqual(t, db.Stats().OpenConnections, 16)
	}
	eventually(t, "statements stay prepared on open connections", func() bool { return preparedOn(t, probe) == 0 })
	for _, db := range []*sql.DB{busy, here, there} {
		require.NoError(t, db.Close())
	}
}

// Lockers that follow each other on one pool leave no prepared statement on its
// connections, whichever of them are idle at Close.
func TestLockersOnOnePool(t *testing.T) {
	onEachAlone(t, func(t *testing.T, e env, probe *sql.DB) {
		const size = 5
		db := e.db(t, "")
		db.SetMaxOpenConns(size)
		db.SetMaxIdleConns(size)
		// often makes the Locker have its statements prepared on the connection
		// that the pool gave back last.
		often := func(l *mysqllock.Locker) {
			for range 100 {
				k, err := l.TryLock(ctx, "x", 0, mysqllock.AutoRenew)
				require.NoError(t, err)
				require.NoError(t, k.Unlock())
			}
			require.GreaterOrEqual(t, preparedOn(t, probe), 2)
		}
		// all has the whole pool, and gives it back in another order.
		all := func() (giveBack func()) {
			var conns []*sql.Conn
			for range size {
				conn, err := db.Conn(ctx)
				require.NoError(t, err)
				conns = append(conns, conn)
			}
			return func() {
				for _, conn := range conns {
					require.NoError(t, conn.Close())
				}
			}
		}
		none := func() {
			t.Helper()
			eventually(t, "statements stay prepared", func() bool { return preparedOn(t, probe) == 0 })
		}
		lockers := max(6, min(200, pairs(t)/1000))
		all()()
		goroutines := runtime.NumGoroutine() // with those of open connections
		for i := range lockers {
			l, err := mysqllock.New(db)
			require.NoError(t, err)
			often(l)
			giveBack := all()
			if i%2 == 0 {
				giveBack() // idle at Close, and others before it
			}
			closed := make(chan error)
			go func() { closed <- l.Close() }()
			if i%2 == 1 {
				giveBack() // in use at Close, or idle just so
			}
			require.NoError(t, <-closed)
		}
		none()
		require.Zero(t, db.Stats().InUse)
		eventually(t, "goroutines", func() bool { return runtime.NumGoroutine() <= goroutines })

		// A connection in use for long keeps them until it ends, and Close continues.
		l := newLocker(t, db)
		often(l)
		giveBack := all()
		start := time.Now()
		require.NoError(t, l.Close())
		require.Less(t, time.Since(start), 5*time.Second)
		require.Equal(t, 2, preparedOn(t, probe))
		giveBack()
		db.SetMaxIdleConns(-1)
		none()
	})
}

// A table that is altered does not make statements pile up; where none can be
// prepared, locks do without.
func TestPrepared(t *testing.T) {
	onEachAlone(t, func(t *testing.T, e env, probe *sql.DB) {
		db := e.db(t, "")
		db.SetMaxOpenConns(4) // in a smaller pool, no statement that may wait for a row is sent
		often := func(l *mysqllock.Locker) {
			for range 220 { // two connections at most take turns
				require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
			}
		}
		exec := func(statement string) {
			_, err := probe.Exec(statement)
			require.NoError(t, err)
		}
		l := newLocker(t, db)
		for range 2 {
			often(l)
			// Two on each connection that was used so often.
			require.Contains(t, []int{2, 4}, preparedOn(t, probe))
			exec("ALTER TABLE mysqllock ADD further INT, ALGORITHM = COPY")
			often(l)
			exec("ALTER TABLE mysqllock DROP further, ALGORITHM = COPY")
		}
		require.NoError(t, l.Close())
		eventually(t, "statements stay prepared", func() bool { return preparedOn(t, probe) == 0 })

		var most int
		require.NoError(t, probe.QueryRow("SELECT @@max_prepared_stmt_count").Scan(&most))
		defer exec(fmt.Sprint("SET GLOBAL max_prepared_stmt_count = ", most))
		exec("SET GLOBAL max_prepared_stmt_count = 0")
		l = newLocker(t, db)
		often(l)
		require.Zero(t, preparedOn(t, probe))
		start := time.Now()
		require.NoError(t, l.Close())
		require.Less(t, time.Since(start), 5*time.Second)
	})
}
