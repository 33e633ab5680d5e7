package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

func TestMain(m *testing.M) {
	exitIfWorker()
	os.Exit(m.Run())
}

// A short run on each server.
func TestTorture(t *testing.T) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			dsn := "MYSQLLOCK_TEST_" + map[string]string{"mysql": "MYSQL", "mariadb": "MARIADB"}[kind] + "_DSN"
			if os.Getenv(dsn) != "" {
				t.Skipf("needs a private server, but %s is set", dsn)
			}
			report, err := run(t.Context(), options{
				server: kind, length: time.Second, cycle: 14 * time.Second, seed: uint64(time.Now().UnixNano()), workers: 3,
				dir: os.TempDir(), log: t.Logf,
			})
			require.NoError(t, err)
			require.Positive(t, report.counts["cycles"])
			t.Log("\n" + report.table())
		})
	}
}
