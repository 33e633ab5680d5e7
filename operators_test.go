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
