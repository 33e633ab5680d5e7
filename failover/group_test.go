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

// online returns how many members of the group are online, as seen by a server.
func online(t *testing.T, s *mysqltest.Server) (n int) {
	_, err := fmt.Sscan(column(t, s, "SELECT COUNT(*) AS n FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'", "n"), &n)
	require.NoError(t, err)
	return n
}

// primaryOf returns the primary, as seen by the first of the servers, or nil if there is none.
func primaryOf(t *testing.T, servers []*mysqltest.Server) *mysqltest.Server {
	port := column(t, servers[0], "SELECT COALESCE(MAX(member_port), 0) AS port FROM performance_schema.replication_group_members WHERE member_role = 'PRIMARY'", "port")
	for _, s := range servers {
		if strings.HasSuffix(s.Addr(), ":"+port) {
			return s
		}
	}
	return nil
}

// The primary is changed by an operator, and then the new one is killed. All locks are kept, and waiters
// acquire theirs without help.
func TestGroupReplication(t *testing.T) {
	t.Parallel()
	servers := mysqltest.NewGroup(t, 3, 0)
	createTables(t, servers[0])
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

// The primary is killed while the group has the default expel timeout. A lock with a lease of 90 s is kept.
func TestGroupReplicationDefaultTimeout(t *testing.T) {
	if os.Getenv("MYSQLLOCK_FAILOVER") == "" {
		t.Skip("takes a minute: run make failover, or set MYSQLLOCK_FAILOVER")
	}
	t.Parallel()
	servers := mysqltest.NewGroup(t, 3, 5*time.Second)
	createTables(t, servers[0])
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

// testGroupChange holds locks through a change of the primary to one of the servers, and then requires that
// the guarantees have held.
func testGroupChange(t *testing.T, vip *wire.Proxy, locker func(...mysqllock.Option) *mysqllock.Locker, servers []*mysqltest.Server, change func()) {
	l, rival := locker(), locker()
	held := acquireMany(t, l)
	tr := startTraffic([]*mysqllock.Locker{locker(), locker(), locker()}, 3)
	usual := tr.awaitGrants(t)
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
	writable := time.Now()
	tr.awaitGrants(t)
	t.Logf("the primary accepted writes after %v, locks were granted %v later", writable.Sub(began), time.Since(writable))
	require.Less(t, time.Since(writable), 3*time.Second+40*usual)
	require.NoError(t, k.Unlock())
	require.NoError(t, <-got)
	requireKept(t, l, rival, held)
	tr.stop(t)
}
