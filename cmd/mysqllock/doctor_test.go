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
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
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

// A server that is read-only, and replicates by statements.
func TestDoctorOnReplica(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			flags := []string{"--read-only", "--log-bin", "--binlog-format=STATEMENT", "--server-id=1"}
			if kind == "mysql" {
				flags = append(flags, "--super-read-only=OFF")
			}
			server := mysqltest.New(t, kind, flags...)
			statuses, code := diagnose(t, server.DSN(mysqltest.NewDatabase(t, server), ""))
			require.Equal(t, exitFailed, code)
			require.Equal(t, failed, statuses["read-only"])
			require.Equal(t, failed, statuses["binlog"])
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
