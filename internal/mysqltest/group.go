package mysqltest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"
)

// NewGroup starts n MySQL servers with Group Replication for one test, and stops them at the test's end.
// The first one is the single primary. A member that was killed is expelled after it has been suspected
// for expel; the server's default is 5 s. NewGroup skips the test if the environment names the server to
// use, if MySQL has no such plugin, or if there is not enough memory: a member needs about 600 MB.
func NewGroup(tb testing.TB, n int, expel time.Duration) []*Server {
	tb.Helper()
	if free, need := freeMemory(), uint64(n)<<30; free < need {
		tb.Skipf("Group Replication NOT TESTED: %d servers need %d MB of memory, %d MB are free", n, need>>20, free>>20)
	}
	var members []string // the addresses at which they listen to each other
	for range n {
		members = append(members, freeAddr())
	}
	var servers []*Server
	for i, addr := range members {
		s := New(tb, "mysql",
			"--log-bin=binlog", fmt.Sprint("--server-id=", i+1), "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
			"--performance-schema=ON", // for its tables of members
			"--report-host=127.0.0.1", "--plugin-load-add=group_replication.so",
			"--loose-group-replication-group-name=1d0c3e5a-2a3b-4c5d-8e9f-000000000001",
			"--loose-group-replication-local-address="+addr, "--loose-group-replication-group-seeds="+strings.Join(members, ","),
			"--loose-group-replication-start-on-boot=OFF",
			fmt.Sprint("--loose-group-replication-member-expel-timeout=", int(expel.Seconds())),
			"--loose-group-replication-message-cache-size=134217728") // the smallest allowed
		if !s.hasPlugin("group_replication") {
			tb.Skipf("Group Replication NOT TESTED: %s has no plugin group_replication.so", s.Version)
		}
		if err := s.joinGroup(i); err != nil {
			tb.Fatalf("mysqltest: %v\n%s", err, s.Log())
		}
		servers = append(servers, s)
	}
	return servers
}

// hasPlugin reports whether a plugin is loaded.
func (s *Server) hasPlugin(name string) bool {
	db, err := sql.Open("mysql", s.DSN("", ""))
	if err != nil {
		return false
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var status string
	err = db.QueryRowContext(ctx, "SELECT plugin_status FROM information_schema.plugins WHERE plugin_name = ?", name).Scan(&status)
	return err == nil && status == "ACTIVE"
}

// joinGroup makes the server a member of a group that already has so many members.
func (s *Server) joinGroup(members int) error {
	db, err := sql.Open("mysql", s.DSN("", ""))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	statements := []string{"CHANGE REPLICATION SOURCE TO SOURCE_USER = 'root' FOR CHANNEL 'group_replication_recovery'"}
	if members == 0 {
		statements = append(statements, "SET GLOBAL group_replication_bootstrap_group = ON", "START GROUP_REPLICATION", "SET GLOBAL group_replication_bootstrap_group = OFF")
	} else {
		statements = append(statements, "START GROUP_REPLICATION")
	}
	for _, statement := range statements {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	for {
		var online int
		err := db.QueryRowContext(ctx, "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'").Scan(&online)
		if err == nil && online == members+1 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d members are online: %w", online, members+1, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
