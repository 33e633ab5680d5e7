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

// shared holds the outcome of the one start of each kind.
var shared struct {
	mu     sync.Mutex // held during a start
	starts map[string]start
}

type start struct {
	server *Server
	err    error
}

// Shared returns the server of a kind that the tests of a process have in
// common, and starts it at the first call. It fails the test if it cannot, and skips
// it under go test -short.
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

// StopShared stops the servers that Shared started. It is for TestMain, after the tests.
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

// Main runs the tests of a package that uses Shared, as its TestMain.
func Main(m *testing.M) {
	code := m.Run()
	StopShared()
	os.Exit(code)
}

// Open returns a pool on a database of its own, and its DSN; both are for the
// test alone and end with it.
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

// Example stands for the test in an example, which has its server even under go test
// -short. What is made for it lasts as long as the server.
type Example struct{ testing.TB }

func (Example) Helper()           {}
func (Example) Cleanup(func())    {}
func (Example) Skip(...any)       {}
func (Example) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// New starts a server for one test alone and stops it at the test's end. When
// the environment names the server to be used, there is none to be killed or
// paused, and the test is skipped.
func New(tb testing.TB, kind string, flags ...string) *Server {
	tb.Helper()
	s := &Server{Kind: kind, flags: flags}
	s.launchFor(tb)
	return s
}

// skipIfShort skips a test that needs a server: go test -short is for those that need none.
func skipIfShort(tb testing.TB) {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs a server")
	}
}

// launchFor makes s a running server for one test.
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

// NewDatabase creates a database for the test and drops it at the test's end.
func NewDatabase(tb testing.TB, s *Server) (dbname string) {
	tb.Helper()
	dbname = fmt.Sprintf("mysqllock_test_%08x", rand.Uint32())
	if err := s.exec("CREATE DATABASE " + dbname); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.exec("DROP DATABASE " + dbname); err != nil && s.runs() {
			tb.Errorf("mysqltest: drop the test's database: %v", err)
		}
	})
	return dbname
}

// exec executes a statement on a connection of its own.
func (s *Server) exec(statement string) error {
	params := ""
	if kindOf(s.Version) == "mariadb" {
		params = "max_statement_time=0" // the server may have a limit, and DROP DATABASE waits for what the test left
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

// runs reports whether the server is thought to run.
func (s *Server) runs() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.program == nil || s.pid != 0
}
