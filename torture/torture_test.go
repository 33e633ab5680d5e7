package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

func TestMain(m *testing.M) {
	exitIfWorker()
	os.Exit(m.Run())
}

// onEach runs a test on each kind of server, in parallel.
func onEach(t *testing.T, test func(t *testing.T, kind string)) {
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			if dsn := "MYSQLLOCK_TEST_" + strings.ToUpper(kind) + "_DSN"; os.Getenv(dsn) != "" {
				t.Skipf("needs a private server, but %s is set", dsn)
			}
			test(t, kind)
		})
	}
}

// A short run finds no violation.
func TestTorture(t *testing.T) {
	onEach(t, func(t *testing.T, kind string) {
		report, err := run(t.Context(), options{
			server: kind, minCycles: 2, cycle: 10 * time.Second, seed: uint64(time.Now().UnixNano()), workers: 3,
			served: 4 * time.Second, released: 15 * time.Second, // the machine may be busy
			dir: os.TempDir(), log: t.Logf,
		})
		require.NoError(t, err)
		require.Positive(t, report.counts["cycles"])
		t.Log("\n" + report.table())
	})
}
