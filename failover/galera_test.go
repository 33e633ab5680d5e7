//go:build linux

package failover_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// Lockers use all nodes of a cluster. In the last subtests, nodes are killed.
func TestGalera(t *testing.T) {
	t.Parallel()
	nodes := mysqltest.NewGalera(t, 3)
	createTables(t, nodes[0])
	for _, node := range nodes[1:] {
		db := open(t, node.Addr(), "")
		eventually(t, "the tables on each node", func() bool {
			var writer string
			return db.QueryRow("SELECT writer FROM register").Scan(&writer) == nil
		})
	}
	t.Run("race", func(t *testing.T) { testGaleraRace(t, nodes) })
	t.Run("waiter of another node", func(t *testing.T) { testGaleraWaiter(t, nodes) })
	t.Run("stale row", func(t *testing.T) { testGaleraStaleRow(t, nodes) })
	t.Run("guard", func(t *testing.T) { testGaleraGuard(t, nodes) })
	t.Run("pool of all nodes", func(t *testing.T) { testGaleraPool(t, nodes) })
	t.Run("node killed", func(t *testing.T) { testGaleraKilled(t, nodes) })
	t.Run("no quorum", func(t *testing.T) { testGaleraNoQuorum(t, nodes) })
}

// Processes on different nodes compete for the same names. If several of them find a row free at the same
// time, certification lets only one of them commit.
func testGaleraRace(t *testing.T, nodes []*mysqltest.Server) {
	var lockers []*mysqllock.Locker
	for _, node := range nodes {
		lockers = append(lockers, newLocker(t, open(t, node.Addr(), "")), newLocker(t, open(t, node.Addr(), "")))
	}
	tr := startTraffic(lockers, 3)
	time.Sleep(4 * time.Second)
	tr.stop(t)
	conflicts := 0
	for _, node := range nodes {
		conflicts += galeraStatus(t, node, "wsrep_local_cert_failures") + galeraStatus(t, node, "wsrep_local_bf_aborts")
	}
	require.Positive(t, conflicts, "without conflicts, nothing was tested")
	t.Log(conflicts, "conflicts")
}

func galeraStatus(t testing.TB, node *mysqltest.Server, name string) (n int) {
	t.Helper()
	require.NoError(t, open(t, node.Addr(), "").QueryRow(
		"SELECT variable_value + 0 FROM information_schema.global_status WHERE variable_name = '"+name+"'").Scan(&n))
	return n
}

// A release on another node cannot signal a waiter, because that node does not know the waiter's
// connection. The waiter finds the free row by polling.
func testGaleraWaiter(t *testing.T, nodes []*mysqltest.Server) {
	holder, waiter := newLocker(t, open(t, nodes[0].Addr(), "")), newLocker(t, open(t, nodes[1].Addr(), ""))
	var longest time.Duration
	for range 5 {
		k := acquire(t, holder, "far")
		got := make(chan *mysqllock.Lock)
		go func() {
			k, err := waiter.TryLock(ctx, "far", 20*time.Second, mysqllock.AutoRenew)
			if err != nil {
				t.Error(err)
			}
			got <- k
		}()
		eventually(t, "a waiter in the queue", func() bool {
			info, err := holder.Inspect(ctx, "far")
			return err == nil && info.Waiters == 1
		})
		require.NoError(t, k.Unlock())
		released := time.Now()
		next := <-got
		longest = max(longest, time.Since(released))
		require.Greater(t, next.Token(), k.Token())
		require.NoError(t, next.Unlock())
	}
	t.Log("the slowest waiter acquired the lock after", longest)
	require.Less(t, longest, 10*time.Second, "the poll interval is a second; the lease would have ended after 30 s")
}

// On a node that lags behind, a SELECT may find a row free although another node has granted it. An
// attempt to acquire the lock is refused.
func testGaleraStaleRow(t *testing.T, nodes []*mysqltest.Server) {
	a, b := open(t, nodes[0].Addr(), ""), open(t, nodes[1].Addr(), "")
	here, there := newLocker(t, a), newLocker(t, b)
	require.NoError(t, acquire(t, here, "stale").Unlock())
	eventually(t, "the row on the other node", func() bool {
		info, err := there.Inspect(ctx, "stale")
		return err == nil && info.Token > 0
	})
	_, err := a.Exec("CREATE TABLE big (n INT PRIMARY KEY, filler CHAR(200) NOT NULL DEFAULT '')")
	require.NoError(t, err)

	stale := 0 // reads
	for i := range 3 {
		// The other node must apply this INSERT, which takes a while, before the grant.
		_, err = a.Exec(fill(i))
		require.NoError(t, err)
		k := acquire(t, here, "stale")
		info, err := there.Inspect(ctx, "stale")
		require.NoError(t, err)
		if !info.Held {
			stale++
		}
		_, err = there.TryLock(ctx, "stale", 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, k.Err())
		require.NoError(t, k.Unlock())
	}
	t.Log(stale, "of 3 plain SELECTs found the row free")
	require.Positive(t, stale, "without a stale read, nothing was tested")
}

// fill returns an INSERT that other nodes need a while to apply.
func fill(i int) string {
	return fmt.Sprintf("INSERT INTO big (n) SELECT %d + seq FROM seq_1_to_30000", i*30_000)
}

// Guard protects a transaction from a takeover on the same node only, because it is a row lock, which other
// nodes do not know. If the lock is taken over on another node, the transaction may commit nevertheless. A
// condition on the row that is written protects it on all nodes.
func testGaleraGuard(t *testing.T, nodes []*mysqltest.Server) {
	a, b := open(t, nodes[0].Addr(), "wsrep_sync_wait=7"), open(t, nodes[1].Addr(), "wsrep_sync_wait=7")
	here, there := newLocker(t, a), newLocker(t, b)
	exec(t, nodes[0], "INSERT INTO app.register VALUES ('free', 0, ''), ('fenced', 0, '')")
	guarded := func() (*mysqllock.Lock, *sql.Tx) {
		k, err := here.TryLock(ctx, "x", 10*time.Second, time.Second)
		require.NoError(t, err)
		tx, err := a.Begin()
		require.NoError(t, err)
		t.Cleanup(func() { tx.Rollback() })
		require.NoError(t, k.Guard(ctx, tx))
		return k, tx
	}

	k, tx := guarded()
	near := newLocker(t, a)
	_, err := near.TryLock(ctx, "x", 1500*time.Millisecond, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired, "a takeover on the same node waits for the guard")
	_, err = tx.Exec("UPDATE register SET writer = 'stale' WHERE name = 'free'")
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	require.ErrorIs(t, k.Unlock(), mysqllock.ErrLost)

	// On another node, the takeover succeeds. When it arrives at the node of the transaction, it aborts the
	// transaction, unless that has committed by then.
	stale := 0
	for i := range 3 {
		k, tx = guarded()
		_, err = tx.Exec("UPDATE register SET writer = ? WHERE name = 'free'", fmt.Sprint("stale ", i))
		require.NoError(t, err)
		_, err := b.Exec(fill(10 + i)) // delays the other node
		require.NoError(t, err)
		next := acquire(t, there, "x")
		require.ErrorIs(t, k.Err(), mysqllock.ErrLost)
		if err := tx.Commit(); err == nil {
			stale++
		} else {
			requireDeadlock(t, err)
		}
		require.NoError(t, next.Unlock())
	}
	t.Log(stale, "of 3 guarded transactions were committed after another holder was granted the lock")

	// With a condition on the token, the row that the new holder has written refuses the stale holder.
	const fenced = "UPDATE register SET token = ?, writer = ? WHERE name = 'fenced' AND token <= ?"
	k, tx = guarded()
	_, err = tx.Exec(fenced, k.Token(), "stale", k.Token())
	require.NoError(t, err)
	next := acquire(t, there, "x")
	_, err = b.Exec(fenced, next.Token(), "next", next.Token())
	require.NoError(t, err)
	requireDeadlock(t, tx.Commit())
	res, err := a.Exec(fenced, k.Token(), "stale", k.Token())
	require.NoError(t, err)
	rows, err := res.RowsAffected()
	require.NoError(t, err)
	require.Zero(t, rows)
	require.NoError(t, next.Unlock())
}

// requireDeadlock requires the error of a transaction that certification has refused.
func requireDeadlock(t testing.TB, err error) {
	t.Helper()
	var refused *mysql.MySQLError
	require.ErrorAs(t, err, &refused)
	require.EqualValues(t, 1213, refused.Number)
}

// The connections of a pool go to several nodes. A node may not have applied yet what another one has
// granted, so a release there may not find it. With wsrep_sync_wait, statements wait until it is applied.
func testGaleraPool(t *testing.T, nodes []*mysqltest.Server) {
	for params, lossless := range map[string]bool{"": false, "wsrep_sync_wait=7": true} {
		config, err := mysql.ParseDSN(nodes[0].DSN("app", params))
		require.NoError(t, err)
		var dialled atomic.Int64
		config.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", nodes[dialled.Add(1)%3].Addr())
		}
		connector, err := mysql.NewConnector(config)
		require.NoError(t, err)
		db := sql.OpenDB(connector)
		t.Cleanup(func() { db.Close() })
		db.SetMaxIdleConns(10)
		l := newLocker(t, db)
		end, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		var cycles, lost atomic.Int64
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				for j := 0; end.Err() == nil; j++ {
					k, err := l.TryLock(ctx, fmt.Sprint("pool ", params, i, j%50), time.Minute, 2*time.Second)
					if err != nil {
						t.Error(err)
						return
					}
					cycles.Add(1)
					if err := k.Unlock(); errors.Is(err, mysqllock.ErrLost) {
						lost.Add(1)
					} else if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		t.Logf("%q: %d of %d releases did not find the row of their lock yet", params, lost.Load(), cycles.Load())
		if lossless {
			require.Zero(t, lost.Load())
		}
	}
}

// The application's node is killed, and its virtual address leads to another node. No lock is lost, and
// the application need not do anything.
func testGaleraKilled(t *testing.T, nodes []*mysqltest.Server) {
	vip := wire.New(t, nodes[0].Addr())
	var lockers []*mysqllock.Locker
	for range 2 {
		lockers = append(lockers, newLocker(t, open(t, vip.Addr(), "")))
	}
	far := newLocker(t, open(t, nodes[2].Addr(), ""))
	lockers = append(lockers, far)
	l := newLocker(t, open(t, vip.Addr(), ""), mysqllock.WithLease(18*time.Second))
	held := acquireMany(t, l)
	w := acquire(t, far, "waited for")
	got := make(chan error)
	go func() {
		k, err := l.TryLock(ctx, "waited for", 30*time.Second, mysqllock.AutoRenew)
		if err == nil {
			err = k.Unlock()
		}
		got <- err
	}()
	eventually(t, "a waiter", func() bool { return l.Stats().Waiting == 1 })
	tr := startTraffic(lockers, 3)
	usual := tr.awaitGrants(t)

	killed := time.Now()
	require.NoError(t, nodes[0].Kill())
	vip.Redirect(nodes[1].Addr())
	awaitWrites(t, nodes[1])
	writable := time.Now()
	tr.awaitGrants(t)
	granting := time.Now()
	require.NoError(t, w.Unlock())
	require.NoError(t, <-got)
	t.Logf("the cluster accepted writes after %v, locks were granted %v later, a waiter acquired its lock %v after the release",
		writable.Sub(killed), granting.Sub(writable), time.Since(granting))
	require.Less(t, time.Since(writable), 3*time.Second+40*usual)

	requireKept(t, l, far, held)
	tr.stop(t)
}

// Of two nodes, one is killed. The other one refuses statements until it returns, because it has no quorum.
// Then waiters acquire their locks without help.
func testGaleraNoQuorum(t *testing.T, nodes []*mysqltest.Server) {
	require.NoError(t, nodes[0].Kill()) // unless an earlier test has
	db := open(t, nodes[1].Addr(), "")
	eventually(t, "a cluster of two", func() bool {
		var size string
		err := db.QueryRow("SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'wsrep_cluster_size'").Scan(&size)
		return err == nil && size == "2"
	})
	awaitWrites(t, nodes[1])
	l, other := newLocker(t, open(t, nodes[1].Addr(), "")), newLocker(t, open(t, nodes[1].Addr(), ""))
	k := acquire(t, other, "quorum")
	got := make(chan error)
	go func() {
		_, err := l.TryLock(ctx, "quorum", time.Minute, mysqllock.AutoRenew)
		got <- err
	}()
	eventually(t, "a waiter", func() bool { return l.Stats().Waiting == 1 })
	require.NoError(t, nodes[2].Kill())
	eventually(t, "a node that refuses statements", func() bool {
		var refused *mysql.MySQLError
		_, err := db.Exec("DELETE FROM register WHERE name = ''")
		return errors.As(err, &refused) && refused.Number == 1047
	})
	_, err := l.TryLock(ctx, "another", 0, mysqllock.AutoRenew)
	require.ErrorContains(t, err, "1047")
	_, err = l.TryLock(ctx, "another", 200*time.Millisecond, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrUnavailable)
	require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
	select {
	case err := <-got:
		t.Fatal("the waiter gave up: ", err)
	default:
	}
	require.NoError(t, k.Err())
	require.NoError(t, nodes[2].Restart())
	awaitWrites(t, nodes[1])
	require.NoError(t, k.Err())
	require.NoError(t, k.Unlock())
	require.NoError(t, <-got)
}
