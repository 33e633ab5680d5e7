//go:build unix

package wire_test

import (
	"context"
	"database/sql"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
	"github.com/mysqllock/mysqllock/internal/wire"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// eachKind runs a test on every kind of server, with a proxy in front of it and a pool of one
// connection through the proxy. The connection is open already.
func eachKind(t *testing.T, params string, test func(t *testing.T, p *wire.Proxy, db *sql.DB)) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			server := mysqltest.Shared(t, kind)
			p := wire.New(t, server.Addr())
			db := open(t, p, server.DSN(mysqltest.NewDatabase(t, server), params), server.Addr())
			db.SetMaxOpenConns(1)
			require.NoError(t, db.Ping())
			p.Reset()
			test(t, p, db)
		})
	}
}

// open opens a database through the proxy. dsn and addr are the server's.
func open(t *testing.T, p *wire.Proxy, dsn, addr string) *sql.DB {
	db, err := sql.Open("mysql", strings.Replace(dsn, addr, p.Addr(), 1))
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	return db
}

// requireCounts requires the numbers of commands and round trips since the last Reset. It waits
// for the commands, because those without a reply, such as COM_STMT_CLOSE, may arrive late.
func requireCounts(t *testing.T, p *wire.Proxy, commands, roundTrips int) {
	t.Helper()
	require.Eventually(t, func() bool { return p.Commands() >= commands }, 10*time.Second, time.Millisecond)
	require.Equal(t, commands, p.Commands(), "commands")
	require.Equal(t, roundTrips, p.RoundTrips(), "round trips")
}

// requireNoReply requires that a statement gets no reply within 100 ms.
func requireNoReply(t *testing.T, db *sql.DB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := db.ExecContext(ctx, "DO 1")
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

func TestCounts(t *testing.T) {
	t.Run("plain", func(t *testing.T) { eachKind(t, "", testCounts) })
	t.Run("compressed", func(t *testing.T) { eachKind(t, "compress=true", testCounts) })
}

func testCounts(t *testing.T, p *wire.Proxy, db *sql.DB) {
	var n int
	require.NoError(t, db.QueryRow("SELECT 1").Scan(&n))
	requireCounts(t, p, 1, 1)
	require.Equal(t, []string{"SELECT 1"}, p.Queries())

	// The driver prepares, executes and closes the statement. Only the close has no reply.
	require.NoError(t, db.QueryRow("SELECT ?", 2).Scan(&n))
	require.Equal(t, 2, n)
	requireCounts(t, p, 4, 3)

	stmt, err := db.Prepare("SELECT ?")
	require.NoError(t, err)
	requireCounts(t, p, 5, 4)
	for range 3 {
		require.NoError(t, stmt.QueryRow(3).Scan(&n))
	}
	requireCounts(t, p, 8, 7)
	require.NoError(t, stmt.Close())
	requireCounts(t, p, 9, 7)

	tx, err := db.Begin()
	require.NoError(t, err)
	_, err = tx.Exec("DO 1")
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	requireCounts(t, p, 12, 10)
	require.Equal(t, []string{"SELECT 1", "START TRANSACTION", "DO 1", "COMMIT"}, p.Queries())

	_, err = db.Exec("no SQL")
	require.Error(t, err)
	require.NoError(t, db.Ping())
	requireCounts(t, p, 14, 12)

	require.Equal(t, 0, p.Connections())
	require.Equal(t, 1, p.Open())
	p.Reset()
	requireCounts(t, p, 0, 0)
	require.Empty(t, p.Queries())
}

// A large statement with a large result counts as one command and one round trip.
func TestCountsOfLargeStatements(t *testing.T) {
	for _, params := range []string{"", "compress=true"} {
		eachKind(t, params, func(t *testing.T, p *wire.Proxy, db *sql.DB) {
			const size = 300_000
			var rows, length int
			result, err := db.Query("SELECT '" + strings.Repeat("x", size) + "' UNION ALL SELECT REPEAT('y', 300000)")
			require.NoError(t, err)
			for ; result.Next(); rows++ {
				var s string
				require.NoError(t, result.Scan(&s))
				length += len(s)
			}
			require.NoError(t, result.Err())
			require.Equal(t, 2, rows)
			require.Equal(t, 2*size, length)
			requireCounts(t, p, 1, 1)
			require.Greater(t, len(p.Queries()[0]), size)
		})
	}
}

func TestInterpolatedParams(t *testing.T) {
	eachKind(t, "interpolateParams=true", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		var n int
		require.NoError(t, db.QueryRow("SELECT ?", 7).Scan(&n))
		requireCounts(t, p, 1, 1)
		require.Equal(t, []string{"SELECT 7"}, p.Queries())
	})
}

func TestConnections(t *testing.T) {
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		db.SetMaxOpenConns(0)
		db.SetMaxIdleConns(3)
		var conns []*sql.Conn
		for range 3 {
			conn, err := db.Conn(t.Context())
			require.NoError(t, err)
			conns = append(conns, conn)
		}
		require.Equal(t, 2, p.Connections(), "the first connection was open already")
		require.Equal(t, 3, p.Open())
		for _, conn := range conns {
			require.NoError(t, conn.Close())
		}
		require.NoError(t, db.Close())
		require.Eventually(t, func() bool { return p.Open() == 0 }, 10*time.Second, time.Millisecond)
		requireCounts(t, p, 0, 0) // handshakes and COM_QUIT do not count
	})
}

func TestDelay(t *testing.T) {
	const delay = 50 * time.Millisecond
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		p.SetDelay(delay)
		start := time.Now()
		_, err := db.Exec("DO 1")
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), 2*delay)

		// 8 MiB arrive in hundreds of chunks, whose delays must not add up.
		start = time.Now()
		var s string
		require.NoError(t, db.QueryRow("SELECT REPEAT('x', 8 << 20)").Scan(&s))
		require.Less(t, time.Since(start), 100*delay)
		require.Equal(t, 8<<20, strings.Count(s, "x"))

		p.SetDelay(0)
		require.NoError(t, db.Ping())
	})
}

func TestCut(t *testing.T) {
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		failed := make(chan error)
		go func() {
			_, err := db.Exec("DO SLEEP(60)")
			failed <- err
		}()
		require.Eventually(t, func() bool { return p.Commands() == 1 }, 10*time.Second, time.Millisecond)
		p.Cut()
		require.Error(t, <-failed)
		require.Equal(t, 0, p.Open())

		require.NoError(t, db.Ping(), "on a new connection")
		require.Equal(t, 1, p.Connections())
	})
}

func TestCutAfterNextCommand(t *testing.T) {
	t.Run("plain", func(t *testing.T) { eachKind(t, "", testCutAfterNextCommand) })
	t.Run("compressed", func(t *testing.T) { eachKind(t, "compress=true", testCutAfterNextCommand) })
}

func testCutAfterNextCommand(t *testing.T, p *wire.Proxy, db *sql.DB) {
	db.SetMaxOpenConns(2)
	_, err := db.Exec("CREATE TABLE t (id INT PRIMARY KEY)")
	require.NoError(t, err)
	tx, err := db.Begin()
	require.NoError(t, err)
	_, err = tx.Exec("INSERT INTO t VALUES (1)")
	require.NoError(t, err)

	// The client gets its error while the statement still waits for the locked row.
	p.CutAfterNextCommand()
	_, err = db.Exec("INSERT INTO t VALUES (1)")
	require.Error(t, err)
	require.NoError(t, tx.Rollback())

	require.Eventually(t, func() bool {
		var rows int
		require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM t").Scan(&rows))
		return rows == 1
	}, 10*time.Second, 10*time.Millisecond)
}

func TestCutBeforeNextReply(t *testing.T) {
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		_, err := db.Exec("CREATE TABLE t (id INT PRIMARY KEY)")
		require.NoError(t, err)

		p.CutBeforeNextReply()
		_, err = db.Exec("INSERT INTO t VALUES (1)")
		require.Error(t, err)
		var rows int
		require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM t").Scan(&rows))
		require.Equal(t, 1, rows)
	})
}

// FailNextReply replaces the reply to an executed command by an error, and the connection remains
// usable.
func TestFailNextReply(t *testing.T) {
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		_, err := db.Exec("CREATE TABLE t (id INT PRIMARY KEY)")
		require.NoError(t, err)

		p.FailNextReply(2013, "Lost connection")
		_, err = db.Exec("INSERT INTO t VALUES (1)")
		var failed *mysql.MySQLError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, mysql.MySQLError{Number: 2013, SQLState: [5]byte{'H', 'Y', '0', '0', '0'}, Message: "Lost connection"}, *failed)
		var rows int
		require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM t").Scan(&rows))
		require.Equal(t, 1, rows)
		require.Equal(t, 0, p.Connections(), "on the same connection")
	})
}

func TestRepeat(t *testing.T) {
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		_, err := db.Exec("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
		require.NoError(t, err)
		_, err = db.Exec("INSERT INTO t VALUES (1, 0)")
		require.NoError(t, err)
		stmt, err := db.Prepare("UPDATE t SET n = LAST_INSERT_ID(n + ?) WHERE id = 1")
		require.NoError(t, err)
		defer stmt.Close()

		p.Repeat(true)
		res, err := db.Exec("UPDATE t SET n = LAST_INSERT_ID(n + 1) WHERE id = 1")
		require.NoError(t, err)
		second, err := res.LastInsertId()
		require.NoError(t, err)
		require.EqualValues(t, 2, second)
		res, err = stmt.Exec(10)
		require.NoError(t, err)
		second, err = res.LastInsertId()
		require.NoError(t, err)
		require.EqualValues(t, 22, second)
		p.FailNextReply(2013, "Lost connection")
		_, err = db.Exec("UPDATE t SET n = n + 100 WHERE id = 1")
		require.ErrorContains(t, err, "Lost connection")
		var n int
		require.NoError(t, db.QueryRow("/* once */ SELECT n FROM t").Scan(&n))
		require.Equal(t, 222, n)
		read, err := db.Prepare("SELECT n + ? FROM t")
		require.NoError(t, err)
		defer read.Close()
		p.Interfere(func(string) wire.Interference { return wire.Interference{Error: 2013} })
		require.NoError(t, read.QueryRow(1).Scan(&n))
		require.Equal(t, 223, n)
		p.Interfere(nil)
		p.Repeat(false)
		require.Equal(t, 0, p.Connections(), "on the same connection")
	})
}

func TestFreeze(t *testing.T) {
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		_, err := db.Exec("CREATE TABLE t (id INT PRIMARY KEY)")
		require.NoError(t, err)

		p.Freeze(true)
		inserted := make(chan error)
		go func() {
			_, err := db.Exec("INSERT INTO t VALUES (1)")
			inserted <- err
		}()
		select {
		case <-inserted:
			t.Fatal("not frozen")
		case <-time.After(100 * time.Millisecond):
		}
		p.Freeze(false)
		require.NoError(t, <-inserted)
		require.Equal(t, 0, p.Connections(), "on the same connection")

		// A statement is executed even if its caller gave up while the proxy was frozen.
		p.Freeze(true)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = db.ExecContext(ctx, "INSERT INTO t VALUES (2)")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		p.Freeze(false)
		require.Eventually(t, func() bool {
			var rows int
			require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM t").Scan(&rows))
			return rows == 2
		}, 10*time.Second, 10*time.Millisecond)
	})
}

func TestBlackHole(t *testing.T) {
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		db.SetMaxOpenConns(0)
		_, err := db.Exec("CREATE TABLE t (id INT PRIMARY KEY)")
		require.NoError(t, err)

		p.BlackHole(true)
		failed := make(chan error)
		go func() {
			_, err := db.Exec("INSERT INTO t VALUES (1)")
			failed <- err
		}()
		require.Eventually(t, func() bool { return p.Commands() == 2 }, 10*time.Second, time.Millisecond)
		requireNoReply(t, db) // on a new connection
		require.Eventually(t, func() bool { return p.Open() == 2 }, 10*time.Second, time.Millisecond)
		p.BlackHole(false)
		require.Error(t, <-failed)

		var rows int
		require.NoError(t, db.QueryRow("SELECT COUNT(*) FROM t").Scan(&rows))
		require.Equal(t, 0, rows, "the statement was dropped")
	})
}

func TestRefuse(t *testing.T) {
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		p.Refuse(true)
		require.NoError(t, db.Ping(), "the open connection still works")
		p.Cut()
		require.Error(t, db.Ping())
		p.Refuse(false)
		require.NoError(t, db.Ping())
	})
}

func TestRedirect(t *testing.T) {
	mysqlServer, mariadb := mysqltest.Shared(t, "mysql"), mysqltest.Shared(t, "mariadb")
	p := wire.New(t, mysqlServer.Addr())
	db, err := sql.Open("mysql", "root@tcp("+p.Addr()+")/")
	require.NoError(t, err)
	defer db.Close()
	requireVersion := func(want string) {
		t.Helper()
		var version string
		require.NoError(t, db.QueryRow("SELECT VERSION()").Scan(&version))
		require.Equal(t, want, version)
	}
	requireVersion(mysqlServer.Version)
	p.Redirect(mariadb.Addr())
	requireVersion(mysqlServer.Version) // on the open connection
	p.Cut()
	requireVersion(mariadb.Version)
}

// The client receives what the server sends before it closes the connection.
func TestServerCloses(t *testing.T) {
	eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
		conn, err := net.Dial("tcp", p.Addr())
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.Write([]byte{1, 0, 0, 1, 0}) // no handshake response
		require.NoError(t, err)
		received := make([]byte, 0, 1024)
		for {
			buf := make([]byte, 1024)
			n, err := conn.Read(buf)
			received = append(received, buf[:n]...)
			if err != nil {
				break
			}
		}
		require.Contains(t, strings.ToLower(string(received)), "handshake")
		require.Eventually(t, func() bool { return p.Open() == 1 }, 10*time.Second, time.Millisecond)
	})
}

func TestNoServer(t *testing.T) {
	p := wire.New(t, "127.0.0.1:1")
	db, err := sql.Open("mysql", "root@tcp("+p.Addr()+")/")
	require.NoError(t, err)
	defer db.Close()
	require.Error(t, db.Ping())
	require.Equal(t, 0, p.Open())
}

// Close ends all connections, whatever state they are in.
func TestClose(t *testing.T) {
	for name, fault := range map[string]func(p *wire.Proxy){
		"idle":       func(p *wire.Proxy) {},
		"frozen":     func(p *wire.Proxy) { p.Freeze(true) },
		"black hole": func(p *wire.Proxy) { p.BlackHole(true) },
		"delayed":    func(p *wire.Proxy) { p.SetDelay(time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, "", func(t *testing.T, p *wire.Proxy, db *sql.DB) {
				fault(p)
				if name != "idle" {
					requireNoReply(t, db)
				}
				p.Close()
				require.Equal(t, 0, p.Open())
				require.Error(t, db.Ping())
			})
		})
	}
}
