//go:build linux

package mysqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// transferScript copies the files of a member to another one that joins the cluster on the same
// machine. It replaces wsrep_sst_rsync, whose package would install a service.
// (https://mariadb.com/kb/en/introduction-to-state-snapshot-transfers-ssts/)
const transferScript = `#!/bin/sh -e
while [ $# -gt 1 ]; do
	case $1 in --role) role=$2 ;; --address) address=$2 ;; --gtid) gtid=$2 ;; --datadir) datadir=$2 ;; esac
	shift
done
joiner=${0%/*}/${address%%/*}
if [ "$role" = donor ]; then
	echo "flush tables"
	until [ -s "$datadir/tables_flushed" ]; do sleep 0.02; done
	cd "$datadir"
	cp -R $(ls | grep -v -e '^galera' -e '^g.*state' -e '^tables_flushed') "$(cat "$joiner")"
	rm tables_flushed
	echo "continue"
	mv "$joiner" "$joiner.done"
	echo "done $gtid"
	echo "$gtid" >"$joiner.gtid.new"
	mv "$joiner.gtid.new" "$joiner.gtid"
else
	rm -rf "$joiner".* "$datadir"/*
	echo "$datadir" >"$joiner"
	echo "ready $address"
	until [ -e "$joiner.gtid" ]; do sleep 0.02; done
	cat "$joiner.gtid"
fi
`

// NewGalera starts a Galera cluster of n MariaDB servers for one test, and stops it at the test's end.
// It skips the test if there is no Galera library, or if the environment names the server to use; if
// the start fails, the test fails.
func NewGalera(tb testing.TB, n int) []*Server {
	tb.Helper()
	provider, err := findGalera()
	if err != nil {
		tb.Skip(err)
	}
	scripts := tb.TempDir()
	if err := os.WriteFile(filepath.Join(scripts, "wsrep_sst_copy"), []byte(transferScript), 0o755); err != nil {
		tb.Fatal(err)
	}
	var members []string // the addresses at which they listen to each other
	for range n {
		members = append(members, freeAddr())
	}
	var servers []*Server
	for i, addr := range members {
		s := &Server{
			Kind: "mariadb",
			flags: []string{
				"--wsrep-on=ON", "--wsrep-provider=" + provider, "--wsrep-cluster-address=gcomm://" + strings.Join(members, ","),
				"--wsrep-node-address=127.0.0.1", "--wsrep-sst-method=copy", "--wsrep-sst-receive-address=" + freeAddr(),
				"--wsrep-provider-options=" + strings.Join([]string{
					"gmcast.listen_addr=tcp://" + addr, "base_host=127.0.0.1", "ist.recv_addr=" + freeAddr(), "gcache.size=16M",
				}, ";"),
				"--binlog-format=ROW", "--innodb-autoinc-lock-mode=2",
			},
			env: []string{"PATH=" + scripts + ":" + os.Getenv("PATH")},
		}
		flags := s.flags // also after a restart
		if i == 0 {
			s.flags = append(slices.Clone(s.flags), "--wsrep-new-cluster")
		}
		s.launchFor(tb)
		s.flags = flags
		servers = append(servers, s)
		if err := s.awaitMembers(i + 1); err != nil {
			tb.Fatalf("%v\n%s", err, s.Log())
		}
	}
	return servers
}

// findGalera searches the same places as scripts/galera.sh, which can fetch a missing library.
func findGalera() (string, error) {
	patterns := []string{"/usr/lib/galera/libgalera_smm.so", "/usr/lib*/galera-4/libgalera_smm.so", "/usr/lib/*/galera*/libgalera_smm.so"}
	if isMariaDB118("mariadb") {
		patterns = []string{filepath.Join(cacheDir(), MariaDB118, "usr/lib/galera/libgalera_smm.so")}
	}
	for _, pattern := range patterns {
		if paths, _ := filepath.Glob(pattern); len(paths) > 0 {
			return paths[0], nil
		}
	}
	return "", errors.New("mysqltest: no Galera library found: run scripts/galera.sh")
}

// awaitMembers waits until the server is ready in a cluster of n members.
func (s *Server) awaitMembers(n int) error {
	db, err := sql.Open("mysql", s.DSN("", ""))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		var ready, size, state string
		err := db.QueryRowContext(ctx, `SELECT
  MAX(IF(variable_name = 'wsrep_ready', variable_value, '')),
  MAX(IF(variable_name = 'wsrep_cluster_size', variable_value, '')),
  MAX(IF(variable_name = 'wsrep_local_state_comment', variable_value, ''))
FROM information_schema.global_status`).Scan(&ready, &size, &state)
		if err == nil && ready == "ON" && size == fmt.Sprint(n) && state == "Synced" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("mysqltest: a Galera node is not in sync in a cluster of %d: ready %s, size %s, %s: %w", n, ready, size, state, err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
