package mysqllock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// A process that starts during a backup, or on a read-only server, finds its table: CREATE TABLE IF NOT
// EXISTS would wait for the end of the backup, even if the table exists.
func TestCreateTableDuringABackup(t *testing.T) {
	onOwnServers(t, func(t *testing.T, e env) {
		conn, err := e.db(t, "").Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		for _, step := range map[string][][2]string{
			"mysql": {
				{"LOCK INSTANCE FOR BACKUP", "UNLOCK INSTANCE"},
				{"FLUSH TABLES WITH READ LOCK", "UNLOCK TABLES"},
				{"SET GLOBAL super_read_only = ON", "SET GLOBAL read_only = OFF"},
			},
			"mariadb": {
				{"FLUSH TABLES WITH READ LOCK", "UNLOCK TABLES"},
				{"SET GLOBAL read_only = ON", "SET GLOBAL read_only = OFF"},
			},
		}[e.server.Kind] {
			_, err := conn.ExecContext(ctx, step[0])
			require.NoError(t, err)
			soon, cancel := context.WithTimeout(ctx, 5*time.Second)
			require.NoError(t, e.locker(t).CreateTable(soon), step[0])
			cancel()
			_, err = conn.ExecContext(ctx, step[1])
			require.NoError(t, err)
		}
	})
}

// If the server limits its threads, a process that waits must not take one of them: it held up every
// other statement on the server for up to 5 s.
func TestWaitersOfALimitedServer(t *testing.T) {
	t.Parallel()
	s := mysqltest.New(t, "mysql") // MariaDB has no such limit
	e := env{server: s, database: mysqltest.NewDatabase(t, s)}
	a, b := e.locker(t), e.locker(t)
	require.NoError(t, a.CreateTable(ctx))
	db := e.db(t, "")
	for _, statement := range []string{"CREATE TABLE other (id INT PRIMARY KEY, n INT)", "INSERT INTO other VALUES (1, 1)"} {
		_, err := db.Exec(statement)
		require.NoError(t, err)
	}
	k := acquire(t, a, "x", mysqllock.AutoRenew)
	got := waiting(t, b, "x", 1)
	time.Sleep(time.Second) // it listens
	_, err := db.Exec("SET GLOBAL innodb_thread_concurrency = 1")
	require.NoError(t, err)
	time.Sleep(6 * time.Second)
	var took time.Duration
	for range 10 {
		start := time.Now()
		_, err := db.Exec("UPDATE other SET n = n + 1")
		require.NoError(t, err)
		took += time.Since(start)
		time.Sleep(100 * time.Millisecond)
	}
	require.Less(t, took, time.Second)
	require.NoError(t, k.Unlock())
	require.NoError(t, get(t, got).Unlock())
}

// While the server executes statements, but does not commit them, because it waits for a replica or for
// a backup, a request for a free lock is not refused as if another owner had it.
func TestCommitsThatHang(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := mysqltest.New(t, kind, "--log-bin=bin", "--server-id=1")
			e := env{server: s, database: mysqltest.NewDatabase(t, s)}
			l := e.locker(t)
			require.NoError(t, l.CreateTable(ctx))
			require.NoError(t, acquire(t, l, "x", mysqllock.AutoRenew).Unlock())
			conn, err := e.db(t, "").Conn(ctx)
			require.NoError(t, err)
			defer conn.Close()
			exec := func(statements ...string) {
				for _, statement := range statements {
					_, err := conn.ExecContext(ctx, statement)
					require.NoError(t, err, statement)
				}
			}
			end := "BACKUP STAGE END"
			if kind == "mysql" {
				exec("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'", "SET GLOBAL rpl_semi_sync_source_timeout = 60000",
					"SET GLOBAL rpl_semi_sync_source_enabled = ON")
				end = "SET GLOBAL rpl_semi_sync_source_enabled = OFF"
			} else {
				exec("BACKUP STAGE START", "BACKUP STAGE FLUSH", "BACKUP STAGE BLOCK_DDL", "BACKUP STAGE BLOCK_COMMIT")
			}
			for _, name := range []string{"x", "new"} {
				for _, wait := range []time.Duration{0, 0, 1500 * time.Millisecond} {
					_, err := l.TryLock(ctx, name, wait, mysqllock.AutoRenew)
					require.ErrorIs(t, err, mysqllock.ErrUnavailable, "%s %v", name, wait)
					require.NotErrorIs(t, err, mysqllock.ErrNotAcquired)
				}
			}
			exec(end)
			for _, name := range []string{"x", "new"} {
				requireFree(t, l, name)
				require.NoError(t, acquire(t, l, name, mysqllock.AutoRenew).Unlock())
			}
		})
	}
}
