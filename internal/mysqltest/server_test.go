//go:build unix

package mysqltest

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// helperVariable is set to a kind in the processes that these tests start and kill.
const helperVariable = "MYSQLTEST_HELPER"

func TestMain(m *testing.M) {
	if kind := os.Getenv(helperVariable); kind != "" {
		helper(kind)
	}
	Main(m)
}

// helper starts a server, prints its address and directory, and waits to be killed.
func helper(kind string) {
	s, err := Start(kind)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if os.Getenv(helperVariable+"_PAUSE") != "" {
		s.Pause()
	}
	fmt.Println("started", s.Addr(), s.dir)
	select {}
}

// eachKind runs a test for every kind of server.
func eachKind(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

// open returns a pool of connections to a new database.
func open(t *testing.T, s *Server) *sql.DB {
	db, err := sql.Open("mysql", s.DSN(NewDatabase(t, s), "parseTime=true&loc=UTC"))
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

func TestShared(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		s := Shared(t, kind)
		require.Same(t, s, Shared(t, kind))
		require.Equal(t, kind, s.Kind)

		db := open(t, s)
		var version, dbname string
		var now time.Time
		require.NoError(t, db.QueryRow("SELECT VERSION(), DATABASE(), UTC_TIMESTAMP(6)").Scan(&version, &dbname, &now))
		require.Equal(t, s.Version, version)
		require.Equal(t, kind == "mariadb", strings.Contains(version, "MariaDB"), version)
		require.Regexp(t, "^mysqllock_test_[0-9a-f]{8}$", dbname)
		require.False(t, now.IsZero())
	})
}

// A server is not older than the oldest version that the library supports.
func TestVersion(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		var major, minor int
		_, err := fmt.Sscanf(Shared(t, kind).Version, "%d.%d", &major, &minor)
		require.NoError(t, err)
		least := map[string]int{"mysql": 800, "mariadb": 1006}[kind]
		require.GreaterOrEqual(t, major*100+minor, least)
	})
}

// MariaDB 11.8 is a separate kind. If the environment says so, it is also the server of kind mariadb.
func TestMariaDB118(t *testing.T) {
	if err := Find(MariaDB118); err != nil {
		t.Skip("NOT TESTED: ", err)
	}
	for _, kind := range []string{MariaDB118, "mariadb"} {
		if os.Getenv(dsnVariable(kind)) != "" {
			continue
		}
		t.Setenv("MYSQLLOCK_TEST_MARIADB", "11.8")
		s := New(t, kind)
		require.Equal(t, kind, s.Kind)
		require.Regexp(t, `^11\.8\..*MariaDB`, s.Version)
		require.NoError(t, open(t, s).Ping())
	}
	t.Setenv("MYSQLLOCK_CACHE", t.TempDir())
	require.ErrorContains(t, Find(MariaDB118), "scripts/mariadb-11.8.sh")
}

func TestDatabaseIsDropped(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string) {
		s := Shared(t, kind)
		var dbname string
		t.Run("test with a database", func(t *testing.T) { dbname = NewDatabase(t, s) })
		require.ErrorContains(t, s.exec("DROP DATABASE "+dbname), "1008")
	})
}

func TestFlags(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string) {
		db := open(t, New(t, kind, "--log-bin", "--binlog-format=ROW", "--server-id=7"))
		var logBin, id, flush int
		require.NoError(t, db.QueryRow("SELECT @@log_bin, @@server_id, @@innodb_flush_log_at_trx_commit").Scan(&logBin, &id, &flush))
		require.Equal(t, []int{1, 7, 1}, []int{logBin, id, flush})
	})
}

// Flags may also come from the environment, and may be for one kind only.
func TestOptions(t *testing.T) {
	t.Setenv(optionsVariable, "--max-connections=77 mysql:--wait-timeout=78 mariadb:--wait-timeout=79")
	for kind, wait := range map[string]int{"mysql": 78, "mariadb": 79} {
		db := open(t, New(t, kind, "--lower-case-table-names=1", kind+":--innodb-lock-wait-timeout=80", requireTLS))
		var found [4]int
		require.NoError(t, db.QueryRow("SELECT @@max_connections, @@global.wait_timeout, @@lower_case_table_names, @@innodb_lock_wait_timeout").
			Scan(&found[0], &found[1], &found[2], &found[3]))
		require.Equal(t, [4]int{77, wait, 1, 80}, found)
		var name, cipher string
		require.NoError(t, db.QueryRow("SHOW STATUS LIKE 'Ssl_cipher'").Scan(&name, &cipher))
		require.NotEmpty(t, cipher)
	}
}

func TestStartIn(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string) {
		if os.Getenv(dsnVariable(kind)) != "" {
			t.Skip("starts no server")
		}
		dir := t.TempDir()
		s, err := StartIn(dir, kind)
		require.NoError(t, err)
		defer s.Stop()
		require.Equal(t, dir, filepath.Dir(s.dir))
		require.NoError(t, syscall.Kill(s.PID(), 0))

		s.Stop()
		require.Zero(t, s.PID())
		require.DirExists(t, dir)
		require.NoDirExists(t, s.dir)
	})
}

func TestKillAndRestart(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string) {
		s := New(t, kind)
		db := open(t, s)
		_, err := db.Exec("CREATE TABLE t (id INT PRIMARY KEY)")
		require.NoError(t, err)
		_, err = db.Exec("INSERT INTO t VALUES (42)")
		require.NoError(t, err)
		addr := s.Addr()

		require.NoError(t, s.Kill())
		require.Error(t, db.Ping())
		require.Error(t, s.Pause(), "there is nothing to pause")
		require.NoError(t, s.Kill(), "killed twice")

		for range 2 { // the second time, Restart itself kills the server
			require.NoError(t, s.Restart())
			require.Equal(t, addr, s.Addr())
			var id int
			require.NoError(t, db.QueryRow("SELECT id FROM t").Scan(&id))
			require.Equal(t, 42, id)
		}
	})
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string) {
		s := New(t, kind)
		require.NoError(t, s.Kill())
		l, err := net.Listen("tcp", s.Addr())
		require.NoError(t, err)
		err = s.Restart()
		require.ErrorContains(t, err, "Bind on TCP/IP port") // what create recognises
		require.NoError(t, l.Close())
		require.NoError(t, s.Restart())
	})
}

func TestPause(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string) {
		s := New(t, kind)
		db := open(t, s)
		require.NoError(t, db.Ping())

		require.NoError(t, s.Pause())
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := db.ExecContext(ctx, "DO 1")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		require.NoError(t, s.Continue())
		require.NoError(t, db.Ping())

		require.NoError(t, s.Pause())
		s.Stop() // works for a paused server, too
		require.NoDirExists(t, s.dir)
	})
}

func TestStop(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string) {
		s := New(t, kind)
		require.NotEmpty(t, s.Log())
		s.Stop()
		s.Stop()
		require.NoDirExists(t, s.dir)
		requireRefused(t, s.Addr())
		require.ErrorIs(t, s.Kill(), errStopped)
		require.ErrorIs(t, s.Restart(), errStopped)
		require.ErrorIs(t, s.Continue(), errStopped)
		require.Empty(t, s.Log())
	})
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	eachKind(t, func(t *testing.T, kind string) {
		if os.Getenv(dsnVariable(kind)) != "" {
			t.Skip("starts no server")
		}
		_, err := Start(kind, "--no-such-flag")
		require.ErrorContains(t, err, "no-such-flag", "the error contains the log")
	})
}

func TestDSNFromEnvironment(t *testing.T) {
	for _, kind := range Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Setenv(dsnVariable(kind), Shared(t, kind).DSN("ignored", "timeout=5s"))
			s, err := Start(kind)
			require.NoError(t, err)
			require.NoError(t, open(t, s).Ping())
			require.Equal(t, Shared(t, kind).Addr(), s.Addr())
			require.Equal(t, Shared(t, kind).Version, s.Version)

			for _, method := range []func() error{s.Kill, s.Restart, s.Pause, s.Continue} {
				require.ErrorIs(t, method(), errExternal)
			}
			require.Empty(t, s.Socket())
			require.Empty(t, s.Log())
			s.Stop()
			require.NoError(t, open(t, s).Ping())
		})
	}
}

func TestDSNOfAnotherKind(t *testing.T) {
	t.Setenv(dsnVariable("mysql"), Shared(t, "mariadb").DSN("", ""))
	_, err := Start("mysql")
	require.ErrorContains(t, err, "not mysql")
}

func TestNothingFound(t *testing.T) {
	t.Setenv("PATH", "")
	t.Setenv("MYSQLLOCK_CACHE", t.TempDir())
	_, err := find("no such kind")
	require.ErrorContains(t, err, "scripts/servers.sh")
	require.ErrorContains(t, err, "make integration")
}

// A server ends when the process that started it ends, however that happens.
func TestGuard(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]struct {
		signal syscall.Signal
		pause  string
	}{
		"killed":                {signal: syscall.SIGKILL},
		"interrupted":           {signal: syscall.SIGINT},
		"killed, server paused": {signal: syscall.SIGKILL, pause: "yes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachKind(t, func(t *testing.T, kind string) {
				if os.Getenv(dsnVariable(kind)) != "" {
					t.Skip("starts no server")
				}
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), helperVariable+"="+kind, helperVariable+"_PAUSE="+end.pause)
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				out, err := cmd.StdoutPipe()
				require.NoError(t, err)
				require.NoError(t, cmd.Start())
				var addr, dir string
				_, err = fmt.Fscanf(bufio.NewReader(out), "started %s %s\n", &addr, &dir)
				require.NoError(t, err)
				require.DirExists(t, dir)
				conn, err := net.Dial("tcp", addr)
				require.NoError(t, err)
				conn.Close()

				require.NoError(t, syscall.Kill(-cmd.Process.Pid, end.signal)) // to its whole process group, as ^C does
				require.Error(t, cmd.Wait())
				require.Eventually(t, func() bool {
					_, err := os.Stat(dir)
					return os.IsNotExist(err)
				}, 10*time.Second, 10*time.Millisecond)
				requireRefused(t, addr)
			})
		})
	}
}

// requireRefused requires that connections to an address are refused.
func requireRefused(t *testing.T, addr string) {
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err != nil
	}, 10*time.Second, 10*time.Millisecond)
}

// A broker that scripts/brokers.sh put into the cache is found there.
func TestFindBroker(t *testing.T) {
	const name = "no-such-server"
	t.Setenv("MYSQLLOCK_CACHE", t.TempDir())
	_, err := FindBroker(name)
	require.ErrorContains(t, err, "scripts/brokers.sh")
	path := filepath.Join(cacheDir(), "brokers", name)
	require.NoError(t, os.Mkdir(filepath.Dir(path), 0o755))
	require.NoError(t, os.Symlink("/bin/sh", path))
	found, err := FindBroker(name)
	require.NoError(t, err)
	require.Equal(t, path, found)
}
