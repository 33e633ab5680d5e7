//go:build unix

package failover_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// A pair consists of a MySQL server, its replica, and the virtual address of the primary.
type pair struct {
	primary, replica *mysqltest.Server
	vip              *wire.Proxy // leads to the primary
}

func newPair(t testing.TB, semiSync bool) *pair {
	var servers []*mysqltest.Server
	for i := range 2 {
		servers = append(servers, mysqltest.New(t, "mysql",
			"--log-bin=binlog", fmt.Sprint("--server-id=", i+1), "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
			"--plugin-load-add=semisync_source.so", "--plugin-load-add=semisync_replica.so"))
	}
	p := &pair{servers[0], servers[1], wire.New(t, servers[0].Addr())}
	if semiSync {
		exec(t, p.replica, "SET GLOBAL rpl_semi_sync_replica_enabled = ON")
	}
	exec(t, p.replica, "SET GLOBAL super_read_only = ON", changeSource(p.primary), "START REPLICA")
	if semiSync {
		exec(t, p.primary,
			"SET GLOBAL rpl_semi_sync_source_wait_point = AFTER_SYNC",
			"SET GLOBAL rpl_semi_sync_source_timeout = 3600000", // an hour: by default, writes stop waiting for the replica after ten seconds
			"SET GLOBAL rpl_semi_sync_source_enabled = ON")
		eventually(t, "semi-synchronous replication", func() bool {
			return column(t, p.primary, "SHOW STATUS LIKE 'Rpl_semi_sync_source_clients'", "Value") == "1"
		})
	}
	createTables(t, p.primary)
	p.catchUp(t)
	return p
}

func changeSource(source *mysqltest.Server) string {
	host, port, _ := net.SplitHostPort(source.Addr())
	return fmt.Sprintf("CHANGE REPLICATION SOURCE TO SOURCE_HOST = '%s', SOURCE_PORT = %s, SOURCE_USER = 'root', SOURCE_AUTO_POSITION = 1", host, port)
}

// column returns the value of a column in the first row of a result.
func column(t testing.TB, s *mysqltest.Server, statement, name string) string {
	t.Helper()
	db, err := sql.Open("mysql", s.DSN("", ""))
	require.NoError(t, err)
	defer db.Close()
	rows, err := db.Query(statement)
	require.NoError(t, err)
	defer rows.Close()
	require.True(t, rows.Next(), statement)
	names, err := rows.Columns()
	require.NoError(t, err)
	fields := make([]sql.RawBytes, len(names))
	targets := make([]any, len(names))
	for i := range fields {
		targets[i] = &fields[i]
	}
	require.NoError(t, rows.Scan(targets...))
	return string(fields[slices.Index(names, name)])
}

// catchUp waits until the replica has executed all transactions of the primary.
func (p *pair) catchUp(t testing.TB) {
	t.Helper()
	p.await(t, column(t, p.primary, "SELECT @@gtid_executed AS gtids", "gtids"))
}

// await waits until the replica has executed the transactions with these GTIDs.
func (p *pair) await(t testing.TB, gtids string) {
	t.Helper()
	require.Equal(t, "0", column(t, p.replica, "SELECT WAIT_FOR_EXECUTED_GTID_SET('"+gtids+"', 30) AS late", "late"))
}

// promote makes the replica the primary, after it has executed all that it has received, and redirects the
// virtual address. The old primary becomes the replica, but does not replicate yet.
func (p *pair) promote(t testing.TB) {
	t.Helper()
	exec(t, p.replica, "STOP REPLICA IO_THREAD")
	p.await(t, column(t, p.replica, "SHOW REPLICA STATUS", "Retrieved_Gtid_Set"))
	exec(t, p.replica, "STOP REPLICA", "RESET REPLICA ALL", "SET GLOBAL super_read_only = OFF", "SET GLOBAL read_only = OFF")
	p.vip.Redirect(p.replica.Addr())
	p.primary, p.replica = p.replica, p.primary
}

// switchOver is a planned switchover: the primary becomes read-only, the replica catches up and becomes the
// primary, and the old primary becomes its replica.
func (p *pair) switchOver(t testing.TB) {
	t.Helper()
	exec(t, p.primary, "SET GLOBAL super_read_only = ON")
	p.catchUp(t)
	p.promote(t)
	exec(t, p.replica, changeSource(p.primary), "START REPLICA")
}

// Two servers use asynchronous replication, which is MySQL's default.
func TestAsynchronousReplication(t *testing.T) {
	t.Parallel()
	p := newPair(t, false)
	for name, test := range map[string]struct {
		params string
		cut    bool // the connections to the old primary are broken
	}{
		"switchover, connections cut":                    {"", true},
		"switchover, connections remain, rejectReadOnly": {"rejectReadOnly=true", false},
	} {
		t.Run(name, func(t *testing.T) { testSwitchover(t, p, test.params, test.cut) })
	}
	t.Run("waiter", func(t *testing.T) { testWaiterOfDemoted(t, p) })
	t.Run("without rejectReadOnly", func(t *testing.T) { testRenewalsOfDemoted(t, p) })
	t.Run("read-only", func(t *testing.T) { testReadOnly(t, p) })
	t.Run("lost grants", func(t *testing.T) { testLostGrants(t, p) })
}

// A planned switchover loses no lock, even with asynchronous replication.
func testSwitchover(t *testing.T, p *pair, params string, cut bool) {
	l, rival := newLocker(t, open(t, p.vip.Addr(), params), mysqllock.WithLease(6*time.Second)), newLocker(t, open(t, p.vip.Addr(), params))
	tr := startTraffic([]*mysqllock.Locker{
		newLocker(t, open(t, p.vip.Addr(), params)), newLocker(t, open(t, p.vip.Addr(), params)), newLocker(t, open(t, p.vip.Addr(), params)),
	}, 3)
	usual := tr.awaitGrants(t)
	held := acquireMany(t, l)

	began := time.Now()
	p.switchOver(t)
	if cut {
		p.vip.Cut()
	}
	switched := time.Now()
	tr.awaitGrants(t)
	t.Logf("the switchover took %v, locks were granted %v later", switched.Sub(began), time.Since(switched))
	require.Less(t, time.Since(switched), 3*time.Second+20*usual)
	requireKept(t, l, rival, held)
	tr.stop(t)
	if params != "" {
		tr.failed.Range(func(err, _ any) bool {
			t.Error("with rejectReadOnly no call fails: ", err)
			return true
		})
	}
}

// A waiter sleeps on a connection to a demoted primary, which it only reads. It polls its rows each second,
// but they are outdated.
func testWaiterOfDemoted(t *testing.T, p *pair) {
	const params = "rejectReadOnly=true"
	holder, waiter := newLocker(t, open(t, p.vip.Addr(), params)), newLocker(t, open(t, p.vip.Addr(), params))
	polling := newLocker(t, open(t, p.vip.Addr(), params), mysqllock.WithoutSignal())
	waits := func(l *mysqllock.Locker, name string) <-chan error {
		got := make(chan error, 1)
		go func() {
			k, err := l.TryLock(ctx, name, time.Minute, mysqllock.AutoRenew)
			if err == nil {
				err = k.Unlock()
			}
			got <- err
		}()
		eventually(t, "a waiter that has been refused", func() bool { return l.Stats().Waiting == 1 && l.Stats().Statements >= 3 })
		return got
	}
	k, other := acquire(t, holder, "waited for"), acquire(t, holder, "waited for, polling")
	got, gotPolling := waits(waiter, k.Name()), waits(polling, other.Name())
	p.switchOver(t)
	exec(t, p.replica, "STOP REPLICA") // otherwise the release would arrive there, too, if late
	require.NoError(t, k.Unlock())
	require.NoError(t, other.Unlock())
	released := time.Now()
	require.NoError(t, <-got)
	t.Log("a waiter that listens acquired its lock", time.Since(released), "after the release")
	require.NoError(t, <-gotPolling)
	t.Log("a waiter that polls acquired its lock", time.Since(released), "after the release")
	require.Less(t, time.Since(released), 10*time.Second, "the lease would have ended after 30 s")
	exec(t, p.replica, "START REPLICA")
}

// The connection that is reserved for renewals outlives SetConnMaxLifetime. Nevertheless, even without
// rejectReadOnly, renewals do not stay on a primary that was demoted.
func testRenewalsOfDemoted(t *testing.T, p *pair) {
	l := newLocker(t, open(t, p.vip.Addr(), ""), mysqllock.WithLease(6*time.Second))
	k := acquire(t, l, "renewed")
	eventually(t, "a renewal", func() bool { return l.Stats().Renewals > 0 })
	p.switchOver(t)
	renewals := l.Stats().Renewals
	eventually(t, "a later one", func() bool { return l.Stats().Renewals > renewals || k.Err() != nil })
	require.NoError(t, k.Err())
	require.NoError(t, k.Unlock())
}

// The virtual address leads to a read-only server: a primary that has been restarted, or a replica that is
// not promoted yet. A waiting call fails at once; with rejectReadOnly it continues to wait.
func testReadOnly(t *testing.T, p *pair) {
	l := newLocker(t, open(t, p.vip.Addr(), "rejectReadOnly=true"))
	k := acquire(t, l, "held")
	p.catchUp(t)
	require.NoError(t, p.primary.Restart())
	exec(t, p.primary, "SET GLOBAL super_read_only = ON")
	_, err := newLocker(t, open(t, p.vip.Addr(), "")).TryLock(ctx, "y", time.Minute, mysqllock.AutoRenew)
	require.ErrorContains(t, err, "rejectReadOnly=true")
	require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)

	_, err = l.TryLock(ctx, "y", 500*time.Millisecond, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrUnavailable)
	got := make(chan error)
	go func() {
		k, err := l.TryLock(ctx, "y", time.Minute, mysqllock.AutoRenew)
		if err == nil {
			err = k.Unlock()
		}
		got <- err
	}()
	eventually(t, "a waiter", func() bool { return l.Stats().Waiting == 1 })
	p.switchOver(t)
	switched := time.Now()
	require.NoError(t, <-got)
	t.Log("the waiter acquired the lock after", time.Since(switched))
	require.Less(t, time.Since(switched), 10*time.Second, "the delay between two attempts is half a second")
	require.NoError(t, k.Err())
	require.NoError(t, k.Unlock())
}

// The primary dies before the replica has received its last grants. So a lock is granted a second time,
// which cannot be avoided. The second holder has a higher token. The first holder can neither write a row
// that is fenced by the token nor commit a guarded transaction, and finds the loss at its next renewal.
func testLostGrants(t *testing.T, p *pair) {
	const lease = 18 * time.Second
	db := open(t, p.vip.Addr(), "")
	l, rival := newLocker(t, db, mysqllock.WithLease(lease)), newLocker(t, open(t, p.vip.Addr(), ""))
	require.NoError(t, acquire(t, l, "x").Unlock())
	safe := acquire(t, l, "safe")
	p.catchUp(t)

	exec(t, p.replica, "STOP REPLICA IO_THREAD")
	granted := time.Now()
	older, missing := acquire(t, l, "x"), acquire(t, l, "y") // the replica has x as it was before, and y not at all
	untouched := acquire(t, l, "z")                          // no other process acquires it
	const fenced = "UPDATE register SET token = ?, writer = ? WHERE name = 'x' AND token <= ?"

	require.NoError(t, p.primary.Kill())
	p.promote(t)
	for _, k := range []*mysqllock.Lock{older, missing} {
		next := acquire(t, rival, k.Name())
		require.NoError(t, k.Err(), "there are two holders; the first one cannot know")
		require.NoError(t, next.Err())
		require.Greater(t, next.Token(), k.Token())

		_, err := db.Exec(fenced, next.Token(), "next", next.Token())
		require.NoError(t, err)
		res, err := db.Exec(fenced, k.Token(), "stale", k.Token())
		require.NoError(t, err)
		rows, err := res.RowsAffected()
		require.NoError(t, err)
		require.Zero(t, rows, "the register refuses the stale holder")
		tx, err := db.Begin()
		require.NoError(t, err)
		require.ErrorIs(t, k.Guard(ctx, tx), mysqllock.ErrLost)
		require.NoError(t, tx.Rollback())
	}
	require.NoError(t, untouched.Err())
	_, err := rival.TryLock(ctx, "safe", 0, mysqllock.AutoRenew)
	require.ErrorIs(t, err, mysqllock.ErrNotAcquired)

	for _, k := range []*mysqllock.Lock{older, missing, untouched} {
		select {
		case <-k.Context().Done():
			require.ErrorIs(t, context.Cause(k.Context()), mysqllock.ErrLost)
		case <-time.After(time.Until(granted.Add(lease))):
			t.Fatal("the holder has not found the loss")
		}
	}
	found := time.Since(granted)
	t.Logf("the losses were found %v after the grant; the lease is %v", found, lease)
	require.Less(t, found, lease/2, "the next renewal is after a third of the lease")
	require.NoError(t, safe.Err())
}

// With semi-synchronous replication, the replica has received each write before it is acknowledged. So no
// grant is lost, whether the primary dies or hangs. If it hangs and the connections stay open, a statement
// ends only by its time limit: two thirds of a lease, or ten seconds.
func TestSemiSynchronousReplication(t *testing.T) {
	for name, test := range map[string]struct {
		fail  func(*mysqltest.Server) error
		lease time.Duration
		cut   bool
		after time.Duration
	}{
		"killed":                 {(*mysqltest.Server).Kill, 30 * time.Second, false, 0},
		"hangs":                  {(*mysqltest.Server).Pause, 6 * time.Second, false, 4 * time.Second},
		"hangs, connections cut": {(*mysqltest.Server).Pause, 30 * time.Second, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, true)
			l, rival := newLocker(t, open(t, p.vip.Addr(), ""), mysqllock.WithLease(12*time.Second)), newLocker(t, open(t, p.vip.Addr(), ""))
			var lockers []*mysqllock.Locker
			for range 3 {
				lockers = append(lockers, newLocker(t, open(t, p.vip.Addr(), ""), mysqllock.WithLease(test.lease)))
			}
			tr := startTraffic(lockers, 3)
			usual := tr.awaitGrants(t)
			held := acquireMany(t, l)

			failed := time.Now()
			require.NoError(t, test.fail(p.primary))
			p.promote(t)
			if test.cut {
				p.vip.Cut()
			}
			promoted := time.Now()
			tr.awaitGrants(t)
			t.Logf("the replica was promoted after %v, locks were granted %v later", promoted.Sub(failed), time.Since(promoted))
			require.Less(t, time.Since(promoted), test.after+3*time.Second+20*usual)
			requireKept(t, l, rival, held)
			tr.stop(t)
		})
	}
}

func acquireMany(t testing.TB, l *mysqllock.Locker) (held []*mysqllock.Lock) {
	t.Helper()
	for i := range 20 {
		held = append(held, acquire(t, l, fmt.Sprint("held ", i)))
	}
	return held
}

// requireKept requires that locks are still held and renewed, and that another process can acquire each
// of them when it is released.
func requireKept(t testing.TB, l, rival *mysqllock.Locker, held []*mysqllock.Lock) {
	t.Helper()
	renewals := l.Stats().Renewals
	eventually(t, "renewals of all locks", func() bool { return l.Stats().Renewals >= renewals+int64(len(held)) || l.Stats().Lost > 0 })
	for _, k := range held {
		require.NoError(t, k.Err())
		_, err := rival.TryLock(ctx, k.Name(), 0, mysqllock.AutoRenew)
		require.ErrorIs(t, err, mysqllock.ErrNotAcquired)
		require.NoError(t, k.Unlock())
		next := acquire(t, rival, k.Name())
		require.Greater(t, next.Token(), k.Token())
		require.NoError(t, next.Unlock())
	}
}
