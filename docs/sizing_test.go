package docs_test

import (
	"database/sql"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// A sizing is what the library needs of a server that keeps a binary log.
type sizing []struct {
	what  string
	bytes float64
}

// The figures of sizing.md are those of both servers, a quarter more or less.
// go test ./docs -run TestSizing -update writes them.
func TestSizing(t *testing.T) {
	page, err := os.ReadFile("sizing.md")
	require.NoError(t, err)
	part := regexp.MustCompile(`(?s)<!-- figures -->\n(.*?)<!-- end of figures -->`)
	require.True(t, part.Match(page))

	all := map[string]sizing{}
	for _, kind := range mysqltest.Kinds {
		all[kind] = measure(t, kind)
	}
	var table strings.Builder
	fmt.Fprintf(&table, "| bytes | %s |\n|---|%s\n", strings.Join(mysqltest.Kinds, " | "), strings.Repeat("---:|", len(mysqltest.Kinds)))
	for i, row := range all[mysqltest.Kinds[0]] {
		fmt.Fprintf(&table, "| %s |", row.what)
		for _, kind := range mysqltest.Kinds {
			fmt.Fprintf(&table, " %.0f |", round(all[kind][i].bytes))
		}
		table.WriteByte('\n')
	}
	t.Logf("measured:\n%s", table.String())
	if *update {
		page = part.ReplaceAllLiteral(page, []byte("<!-- figures -->\n"+table.String()+"<!-- end of figures -->"))
		require.NoError(t, os.WriteFile("sizing.md", page, 0o644))
		return
	}
	figures := regexp.MustCompile(`\| (\d+)`)
	written := figures.FindAllStringSubmatch(string(part.FindSubmatch(page)[1]), -1)
	measured := figures.FindAllStringSubmatch(table.String(), -1)
	require.Len(t, written, len(measured))
	for i := range measured {
		was, err := strconv.ParseFloat(written[i][1], 64)
		require.NoError(t, err)
		is, err := strconv.ParseFloat(measured[i][1], 64)
		require.NoError(t, err)
		require.InEpsilon(t, was, is, 0.25, "go test ./docs -run TestSizing -update")
	}
}

// round keeps two digits.
func round(x float64) float64 {
	unit := math.Pow(10, max(0, math.Floor(math.Log10(x))-1))
	return math.Round(x/unit) * unit
}

func measure(t *testing.T, kind string) (s sizing) {
	server := mysqltest.New(t, kind, "--log-bin=bin", "--server-id=1", "--binlog-format=ROW", "--max-binlog-size=1G")
	name := mysqltest.NewDatabase(t, server)
	open := func(parameters string) *sql.DB {
		db, err := sql.Open("mysql", server.DSN(name, parameters))
		require.NoError(t, err)
		t.Cleanup(func() { db.Close() })
		return db
	}
	probe := open("")
	add := func(what string, bytes float64) {
		s = append(s, struct {
			what  string
			bytes float64
		}{what, bytes})
	}
	newLocker := func(options ...mysqllock.Option) *mysqllock.Locker {
		locker, err := mysqllock.New(open(""), options...)
		require.NoError(t, err)
		t.Cleanup(func() { locker.Close() })
		require.NoError(t, locker.CreateTable(t.Context()))
		return locker
	}
	for _, image := range []string{"FULL", "MINIMAL"} {
		_, err := probe.Exec("SET GLOBAL binlog_row_image = " + image)
		require.NoError(t, err)
		add("binary log, acquire and release, `binlog_row_image="+image+"`", loggedBy(t, probe, newLocker()))
	}
	_, err := probe.Exec("SET GLOBAL binlog_row_image = FULL")
	require.NoError(t, err)
	add("binary log, one renewal of a session, which keeps all locks of its process", loggedByRenewals(t, probe, newLocker(mysqllock.WithLease(time.Second))))
	table, heap := held(t, probe, newLocker())
	add("table and its indexes, each name", table)
	add("memory of the process, each lock that it holds", heap)
	return s
}

// logSize returns the length of the binary log.
func logSize(t *testing.T, probe *sql.DB) (size float64) {
	rows, err := probe.Query("SHOW BINARY LOGS")
	require.NoError(t, err)
	defer rows.Close()
	columns, err := rows.Columns()
	require.NoError(t, err)
	for rows.Next() {
		var name, encrypted string
		var n float64
		targets := []any{&name, &n, &encrypted}
		require.NoError(t, rows.Scan(targets[:len(columns)]...))
		size += n
	}
	require.NoError(t, rows.Err())
	return size
}

// loggedBy returns what an acquire and its release write to the binary log.
func loggedBy(t *testing.T, probe *sql.DB, locker *mysqllock.Locker) float64 {
	const pairs = 200
	var before float64
	for i := range pairs + 1 {
		if i == 1 { // the first one inserts the row
			before = logSize(t, probe)
		}
		lock, err := locker.TryLock(t.Context(), "order:42", 0, mysqllock.AutoRenew)
		require.NoError(t, err)
		require.NoError(t, lock.Unlock())
	}
	return (logSize(t, probe) - before) / pairs
}

// loggedByRenewals returns what a renewal of a session writes to it.
func loggedByRenewals(t *testing.T, probe *sql.DB, locker *mysqllock.Locker) float64 {
	lock, err := locker.TryLock(t.Context(), "order:42", 0, mysqllock.AutoRenew)
	require.NoError(t, err)
	defer lock.Unlock()
	renewals := func(atLeast int64) int64 {
		require.Eventually(t, func() bool { return locker.Stats().Renewals >= atLeast }, 20*time.Second, time.Millisecond)
		return locker.Stats().Renewals
	}
	first := renewals(2) // the session has begun
	before := logSize(t, probe)
	last := renewals(first + 6)
	return (logSize(t, probe) - before) / float64(last-first)
}

// held returns the bytes of the table for each name, and those of the process for each lock.
func held(t *testing.T, probe *sql.DB, locker *mysqllock.Locker) (table, heap float64) {
	const sets, names = 25, 800
	used := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := used()
	for i := range sets {
		all := make([]string, names)
		for j := range all {
			all[j] = fmt.Sprintf("order:%d", 1000*i+j)
		}
		_, err := locker.TryLockAll(t.Context(), all, 0, mysqllock.AutoRenew)
		require.NoError(t, err)
	}
	heap = (used() - before) / sets / names
	runtime.KeepAlive(locker)
	_, err := probe.Exec("ANALYZE TABLE mysqllock")
	require.NoError(t, err)
	conn, err := probe.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	conn.ExecContext(t.Context(), "SET SESSION information_schema_stats_expiry = 0") // MariaDB has none
	var size float64
	require.NoError(t, conn.QueryRowContext(t.Context(), `SELECT data_length + index_length FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = 'mysqllock'`).Scan(&size))
	return size / sets / names, heap
}
