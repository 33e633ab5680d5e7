//go:build unix

package failover_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

// online returns how many members of its group a server takes to be online.
func online(t *testing.T, s *mysqltest.Server) (n int) {
	_, err := fmt.Sscan(column(t, s, "SELECT COUNT(*) AS n FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'", "n"), &n)
	require.NoError(t, err)
	return n
}

// primaryOf returns the primary as the first of the servers sees it, nil if there is none.
func primaryOf(t *testing.T, servers []*mysqltest.Server) *mysqltest.Server {
	port := column(t, servers[0], "SELECT COALESCE(MAX(member_port), 0) AS port FROM performance_schema.replication_group_members WHERE member_role = 'PRIMARY'", "port")
	for _, s := range servers {
		if strings.HasSuffix(s.Addr(), ":"+port) {
			return s
		}
	}
	return nil
}

// The primary changes by plan, then the new one is killed. Every lock is kept, and
// waiters are served without help.
func TestGroupReplication(t *testing.T) {
	t.Parallel()
	servers := mysqltest.NewGroup(t, 3, 0)
	prepare(t, servers[0])
	vip := wire.New(t, servers[0].Addr())
	locker := func(opts ...mysqllock.Option) *mysqllock.Locker {
		return newLocker(t, open(t, vip.Addr(), "rejectReadOnly=true"), opts...)
	}
	t.Run("switch", func(t *testing.T) {
		testGroupChange(t, vip, locker, servers[1:], func() {
			uuid := column(t, servers[1], "SELECT @@server_uuid AS uuid", "uuid")
			column(t, servers[0], "SELECT group_replication_set_as_primary('"+uuid+"') AS done", "done")
			require.Same(t, servers[1], primaryOf(t, servers))
		})
	})
	t.Run("primary killed", func(t *testing.T) {
		alive := []*mysqltest.Server{servers[0], servers[2]}
		testGroupChange(t, vip, locker, alive, func() {
			require.Same(t, servers[1], primaryOf(t, servers))
			require.NoError(t, servers[1].Kill())
			eventually(t, "a group of two", func() bool { return online(t, servers[0]) == 2 })
		})
	})
}

// The primary is killed, with the default time for which a member is suspected before
// it is expelled. A lease of three times what that takes is kept.
func TestGroupReplicationDefaultTimeout(t *testing.T) {
	if os.Getenv("MYSQLLOCK_FAILOVER") == "" {
		t.Skip("takes a minute: run make failover, or set MYSQLLOCK_FAILOVER")
	}
	t.Parallel()
	servers := mysqltest.NewGroup(t, 3, 5*time.Second)
	prepare(t, servers[0])
	vip := wire.New(t, servers[0].Addr())
	locker := func(opts ...mysqllock.Option) *mysqllock.Locker {
		return newLocker(t, open(t, vip.Addr(), "rejectReadOnly=true"), append(opts, mysqllock.WithLease(90*time.Second))...)
	}
	require.Equal(t, "5", column(t, servers[1], "SELECT @@group_replication_member_expel_timeout AS n", "n"))
	testGroupChange(t, vip, locker, servers[1:], func() {
		require.NoError(t, servers[0].Kill())
		eventually(t, "a group of two", func() bool { return online(t, servers[1]) == 2 })
	})
}

// testGroupChange holds locks through a change of the primary, which is one of the
// servers afterwards, and compares what comes after it with what is promised.
func testGroupChange(t *testing.T, vip *wire.Proxy, locker func(...mysqllock.Option) *mysqllock.Locker, servers []*mysqltest.Server, change func()) {
	l, rival := locker(), locker()
	held := acquireMany(t, l)
	tr := startTraffic([]*mysqllock.Locker{locker(), locker(), locker()}, 3)
	usual := tr.flows(t)
	k := acquire(t, rival, "waited for")
	got := make(chan error, 1)
	waiter := locker()
	go func() {
		k, err := waiter.TryLock(ctx, "waited for", 2*time.Minute, mysqllock.AutoRenew)
		if err == nil {
			err = k.Unlock()
		}
		got <- err
	}()
	eventually(t, "a waiter", func() bool { return waiter.Stats().Waiting == 1 })

	began := time.Now()
	change()
	var primary *mysqltest.Server
	eventually(t, "a new primary", func() bool { primary = primaryOf(t, servers); return primary != nil })
	vip.Redirect(primary.Addr())
	awaitWrites(t, primary)
	answering := time.Now()
	tr.flows(t)
	t.Logf("a primary writes after %v, locks are granted %v later", answering.Sub(began), time.Since(answering))
	require.Less(t, time.Since(answering), 3*time.Second+40*usual)
	require.NoError(t, k.Unlock())
	require.NoError(t, <-got)
	requireKept(t, l, rival, held)
	tr.stop(t)
}
