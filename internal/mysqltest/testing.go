package mysqltest

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"
)

// shared has the servers that Shared has started.
var shared struct {
	mu     sync.Mutex       // guards starts; held while a server starts
	starts map[string]start // by kind
}

// A start is the result of starting a server.
type start struct {
	server *Server
	err    error
}

// Shared returns the server of a kind that all tests of the process share, and starts it at the first
// call. If that fails, the test fails. With go test -short, the test is skipped.
func Shared(tb testing.TB, kind string) *Server {
	tb.Helper()
	skipIfShort(tb)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	s, ok := shared.starts[kind]
	if !ok {
		s.server, s.err = Start(kind)
		if shared.starts == nil {
			shared.starts = map[string]start{}
		}
		shared.starts[kind] = s
	}
	if s.err != nil {
		tb.Fatal(s.err)
	}
	return s.server
}

// StopShared stops the servers that Shared has started. TestMain calls it after the tests.
func StopShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	for _, s := range shared.starts {
		if s.err == nil {
			s.server.Stop()
		}
	}
	shared.starts = nil
}

// Main runs the tests of a package that uses Shared. Its TestMain calls it.
func Main(m *testing.M) {
	code := m.Run()
	StopShared()
	os.Exit(code)
}

// Open creates a database for the test, and returns a pool of connections to it and its DSN. At the
// test's end, it closes the pool and drops the database.
func Open(tb testing.TB, kind string) (db *sql.DB, dsn string) {
	tb.Helper()
	s := Shared(tb, kind)
	dsn = s.DSN(NewDatabase(tb, s), "")
	db, err := sql.Open("mysql", dsn)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { db.Close() })
	return db, dsn
}

// Example is the testing.TB of an example, which has no test. It uses a server even with go test -short,
// and its databases are not dropped.
type Example struct{ testing.TB }

func (Example) Helper()           {}
func (Example) Cleanup(func())    {}
func (Example) Skip(...any)       {}
func (Example) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// New starts a server for one test, and stops it at the test's end. It skips the test if the environment
// names the server to use, because that must not be killed or paused.
func New(tb testing.TB, kind string, flags ...string) *Server {
	tb.Helper()
	s := &Server{Kind: kind, flags: flags}
	s.launchFor(tb)
	return s
}

// skipIfShort skips a test with go test -short, which runs only tests that need no server.
func skipIfShort(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs a server")
	}
}

// launchFor starts the server for one test, and stops it at the test's end.
func (s *Server) launchFor(tb testing.TB) {
	tb.Helper()
	skipIfShort(tb)
	if os.Getenv(dsnVariable(s.Kind)) != "" {
		tb.Skipf("needs a private server, but %s is set", dsnVariable(s.Kind))
	}
	if err := s.launch(""); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("error log of %s:\n%s", s.Version, s.Log())
		}
		s.Stop()
	})
}

// NewDatabase creates a database for the test, and drops it at the test's end.
func NewDatabase(tb testing.TB, s *Server) (dbname string) {
	tb.Helper()
	dbname = fmt.Sprintf("mysqllock_test_%08x", rand.Uint32())
	if err := s.exec("CREATE DATABASE " + dbname); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.exec("DROP DATABASE " + dbname); err != nil && s.running() {
			tb.Errorf("mysqltest: drop the database of the test: %v", err)
		}
	})
	return dbname
}

// exec executes a statement on a new connection.
func (s *Server) exec(statement string) error {
	params := ""
	if kindOf(s.Version) == "mariadb" {
		params = "max_statement_time=0" // DROP DATABASE may wait for transactions of the test for longer than the server's limit
	}
	db, err := sql.Open("mysql", s.DSN("", params))
	if err != nil {
		return err
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = db.ExecContext(ctx, statement)
	return err
}

// running reports whether the server is running, as far as this process knows.
func (s *Server) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.program == nil || s.pid != 0
}
