//go:build linux || darwin

package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
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

// diagnose runs doctor and returns the status of each check.
func diagnose(t *testing.T, dsn string) (statuses map[string]string, code int) {
	cmd := exec.Command("mysqllock", "doctor", "--json")
	cmd.Env = append(os.Environ(), "MYSQLLOCK_DSN="+dsn)
	out, _ := cmd.Output()
	t.Logf("%s", out)
	var said struct {
		OK     bool
		Checks []finding
	}
	require.NoError(t, json.Unmarshal(out, &said))
	require.Equal(t, said.OK, cmd.ProcessState.ExitCode() == 0)
	statuses = map[string]string{}
	for _, f := range said.Checks {
		statuses[f.Check] = f.Status
	}
	return statuses, cmd.ProcessState.ExitCode()
}

// A server that is read-only, replicates by statements, and does not keep its last commits.
func TestDoctorOnReplica(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			flags := []string{"--read-only", "--log-bin", "--binlog-format=STATEMENT", "--server-id=1", "--innodb-flush-log-at-trx-commit=0"}
			if kind == "mysql" {
				flags = append(flags, "--super-read-only=OFF")
			}
			server := mysqltest.New(t, kind, flags...)
			statuses, code := diagnose(t, server.DSN(mysqltest.NewDatabase(t, server), ""))
			require.Equal(t, exitFailed, code)
			require.Equal(t, failed, statuses["read-only"])
			require.Equal(t, failed, statuses["binlog"])
			require.Equal(t, warning, statuses["durability"])
			require.Equal(t, fine, statuses["version"])
		})
	}
}

// A balancer that leads every other connection to another server.
func TestDoctorBehindBalancer(t *testing.T) {
	t.Parallel()
	var addrs []string
	for _, kind := range mysqltest.Kinds {
		addrs = append(addrs, mysqltest.Shared(t, kind).Addr())
	}
	server := mysqltest.Shared(t, mysqltest.Kinds[0])
	config, err := mysql.ParseDSN(server.DSN("information_schema", ""))
	require.NoError(t, err)
	config.Addr = balance(t, addrs)
	statuses, code := diagnose(t, config.FormatDSN())
	require.Equal(t, exitFailed, code)
	require.Equal(t, failed, statuses["servers"])
}

// through returns a DSN that leads to a server through a proxy.
func through(t *testing.T, server *mysqltest.Server, proxy *wire.Proxy) string {
	config, err := mysql.ParseDSN(server.DSN(mysqltest.NewDatabase(t, server), ""))
	require.NoError(t, err)
	db, err := sql.Open("mysql", config.FormatDSN())
	require.NoError(t, err)
	defer db.Close()
	_, err = db.Exec(mysqllock.Schema)
	require.NoError(t, err)
	config.Addr = proxy.Addr()
	return config.FormatDSN()
}

// A proxy that shares connections refuses LAST_INSERT_ID on a fresh one, and
// allows it after a SET: what acquires and releases comes first.
func TestDoctorAcquiresFirst(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.Shared(t, kind)
			proxy := wire.New(t, server.Addr())
			dsn := through(t, server, proxy)
			statuses, code := diagnose(t, dsn)
			require.Equal(t, 0, code)
			require.Equal(t, fine, statuses["statements"])
			for _, query := range proxy.Queries()[:2] {
				require.Regexp(t, "^UPDATE .*`mysqllock` SET ", query)
				require.Contains(t, query, "LAST_INSERT_ID(")
			}

			proxy.FailNextReply(3566, "Access to native function 'LAST_INSERT_ID' is rejected.")
			statuses, code = diagnose(t, dsn)
			require.Equal(t, exitFailed, code)
			require.Equal(t, failed, statuses["statements"])
		})
	}
}

// A real proxy that shares connections is found; one that does not is passed.
func TestDoctorBehindRouter(t *testing.T) {
	t.Parallel()
	for sharing, want := range map[string]string{"0": fine, "1": failed} {
		t.Run("connection_sharing="+sharing, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.Shared(t, "mysql")
			addr := mysqltest.NewBalancer(t, "mysqlrouter", server.Addr(), map[string]string{"connection_sharing": sharing})
			config, err := mysql.ParseDSN(server.DSN(mysqltest.NewDatabase(t, server), ""))
			require.NoError(t, err)
			db, err := sql.Open("mysql", config.FormatDSN())
			require.NoError(t, err)
			defer db.Close()
			_, err = db.Exec(mysqllock.Schema)
			require.NoError(t, err)
			config.Addr = addr
			statuses, code := diagnose(t, config.FormatDSN())
			require.Equal(t, want, statuses["statements"])
			require.Equal(t, sharing == "0", code == 0)
		})
	}
}

// What gives no answer is given up within seconds, whenever that begins.
func TestDoctorInABlackHole(t *testing.T) {
	t.Parallel()
	server := mysqltest.Shared(t, mysqltest.Kinds[0])
	for _, at := range []int{0, 10} { // commands
		t.Run(strconv.Itoa(at), func(t *testing.T) {
			t.Parallel()
			proxy := wire.New(t, server.Addr())
			proxy.SetDelay(20 * time.Millisecond) // or it may have ended before
			dsn := through(t, server, proxy)
			ended := make(chan struct{})
			defer close(ended)
			go func() {
				for proxy.Commands() < at {
					select {
					case <-ended:
						return
					case <-time.After(100 * time.Microsecond):
					}
				}
				proxy.BlackHole(true)
			}()
			if at == 0 {
				proxy.BlackHole(true)
			}
			start := time.Now()
			statuses, code := diagnose(t, dsn)
			require.Less(t, time.Since(start), 3*answerTimeout, "it was 30 s")
			require.Equal(t, exitFailed, code)
			var gone []string
			for name, status := range statuses {
				if status == failed {
					gone = append(gone, name)
				}
			}
			require.Len(t, gone, 1, "the rest is not tried")
			if at == 0 {
				require.Equal(t, "connection", gone[0])
			}
		})
	}
}

// balance forwards connections to the addresses in turn.
func balance(t *testing.T, addrs []string) string {
	var open sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		listener.Close()
		open.Wait()
	})
	var count atomic.Int64
	open.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			backend, err := net.Dial("tcp", addrs[int(count.Add(1))%len(addrs)])
			if err != nil {
				client.Close()
				continue
			}
			context.AfterFunc(ctx, func() { client.Close(); backend.Close() })
			open.Go(func() { io.Copy(backend, client); backend.Close() })
			open.Go(func() { io.Copy(client, backend); client.Close() })
		}
	})
	return listener.Addr().String()
}

// What is read from the schema is all that the server makes of it.
func TestWantedShape(t *testing.T) {
	onEach(t, func(t *testing.T, e env) {
		db, err := sql.Open("mysql", e.server.DSN(e.dbname, ""))
		require.NoError(t, err)
		defer db.Close()
		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		d := &doctor{conn: conn, name: "mysqllock"}
		have, engine, err := d.shapeOf(t.Context())
		require.NoError(t, err)
		require.Equal(t, have, wantedShape())
		require.Equal(t, "InnoDB", engine)
	})
}
