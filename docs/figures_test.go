package docs_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// readmeFigures are the rows of README's table of figures, and the goals of bench/results that they
// are from.
var readmeFigures = []struct{ what, goal string }{
	{"acquire and release an uncontended lock: time, relative to two bare prepared UPDATEs", "acquire and release ≤"},
	{"64 goroutines, each with its own lock: throughput, relative to two bare UPDATEs", "distinct names, 64 goroutines"},
	{"from `Unlock` to the lock in the next process, held for 100 ms: median, relative to etcd", "handoff, held for 100 ms, 1 waiting: p50 ≤ 0.75 ×"},
	{"from `Unlock` to the lock in the next process, held for 100 ms: 99th percentile", "handoff, held for 100 ms, 1 waiting: p99"},
	{"one lock that 64 goroutines of a process take in turns: acquisitions per second", "hot lock, 1 process"},
	{"64 goroutines acquire 10,000 locks, which one row then keeps alive", "64 goroutines acquire 10,000 locks"},
}

// The figures of README are those of bench/results.
func TestReadmeFigures(t *testing.T) {
	var table strings.Builder
	table.WriteString("| `make bench`, on 2 noisy cores | MySQL | MariaDB |\n|---|---:|---:|\n")
	for _, figure := range readmeFigures {
		fmt.Fprintf(&table, "| %s |", figure.what)
		for _, kind := range mysqltest.Kinds {
			results, err := os.ReadFile(filepath.Join(root, "bench", "results", kind, "README.md"))
			require.NoError(t, err)
			goal := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(figure.goal) + `[^|]*\| ([^|,]*(?:,\d+)?)[^|]*\|`).FindSubmatch(results)
			require.NotNil(t, goal, "%s: %s", kind, figure.goal)
			fmt.Fprintf(&table, " %s |", strings.TrimSpace(string(goal[1])))
		}
		table.WriteString("\n")
	}
	path := filepath.Join(root, "README.md")
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	part := regexp.MustCompile("(?s)\\| `make bench`.*?\n\n")
	require.True(t, part.Match(page))
	want := part.ReplaceAllLiteralString(string(page), table.String()+"\n")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(page), "go test ./docs -run TestReadmeFigures -update")
}
