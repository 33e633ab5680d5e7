//go:build linux || darwin

package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/mysqltest"
)

// The tests run the program as a process of its own, found in PATH.
func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){"mysqllock": main})
}

type tests struct{ m *testing.M }

func (t tests) Run() int {
	os.Setenv("GORACE", "atexit_sleep_ms=0") // not a second at the end of each process
	defer mysqltest.StopShared()
	return t.m.Run()
}

// TestScripts runs each script of testdata on each server.
func TestScripts(t *testing.T) {
	t.Parallel()
	for _, kind := range mysqltest.Kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			server := mysqltest.Shared(t, kind)
			testscript.Run(t, testscript.Params{
				Dir:                 "testdata",
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
				Setup:               func(e *testscript.Env) error { return setup(e, server) },
				Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
					"status":   execStatus,
					"sql":      execSQL,
					"apply":    applySQL,
					"hold":     hold,
					"guard":    guard,
					"lacks":    lacks,
					"notables": noTables,
				},
			})
		})
	}
}

const password = "s3cr'et#/?@ x"

// setup gives a script an empty database as root, in MYSQLLOCK_DSN; an account
// that can do nothing but connect, in APP and APP_DSN; and what reaches nobody.
func setup(e *testscript.Env, server *mysqltest.Server) error {
	db, err := sql.Open("mysql", server.DSN("", "multiStatements=true"))
	if err != nil {
		return err
	}
	app := fmt.Sprintf("app_%08x", rand.Uint32())
	if _, err := db.Exec(fmt.Sprintf("CREATE DATABASE %[1]s; CREATE USER %[1]s@'%%' IDENTIFIED BY '%[2]s'; USE %[1]s", app, strings.ReplaceAll(password, "'", "''"))); err != nil {
		return errors.Join(err, db.Close())
	}
	e.Defer(func() {
		db.Exec(fmt.Sprintf("DROP DATABASE %[1]s; DROP USER %[1]s@'%%'", app))
		db.Close()
	})
	config, err := mysql.ParseDSN(server.DSN(app, ""))
	if err != nil {
		return err
	}
	own := config.Clone()
	own.User, own.Passwd = app, password
	host, port, _ := net.SplitHostPort(server.Addr())
	for name, value := range map[string]string{
		"MYSQLLOCK_DSN": server.DSN(app, ""),
		"APP_DSN":       own.FormatDSN(),
		"APP":           app,
		"PASSWORD":      password,
		"DB":            app,
		"DBHOST":        host,
		"DBPORT":        port,
		"SOCKET":        server.Socket(),
		"HOME":          e.WorkDir,
		"GORACE":        os.Getenv("GORACE"),
		"READ_ONLY":     map[string]string{"mysql": "transaction_read_only", "mariadb": "tx_read_only"}[server.Kind],
		"SHELL":         "/bin/sh",
	} {
		e.Setenv(name, value)
	}
	e.Values["db"] = server.DSN(app, "multiStatements=true")
	return nil
}

// status STATUS COMMAND… is exec with the status that is expected.
func execStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status STATUS COMMAND [ARG…]")
	}
	got := 0
	var failed *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &failed) {
		got = failed.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("status %d, not %s", got, args[0])
	}
}

func open(ts *testscript.TestScript) *sql.DB {
	db, err := sql.Open("mysql", ts.Value("db").(string))
	ts.Check(err)
	return db
}

// sql STATEMENT executes it as root.
func execSQL(ts *testscript.TestScript, _ bool, args []string) {
	db := open(ts)
	defer db.Close()
	_, err := db.Exec(strings.Join(args, " "))
	ts.Check(err)
}

// apply FILE executes the statements of a file as root.
func applySQL(ts *testscript.TestScript, neg bool, args []string) {
	execSQL(ts, neg, []string{ts.ReadFile(args[0])})
}

// hold [shared|slots LIMIT] NAME HOLDER takes a lock for the rest of the script. NAME and
// HOLDER are as in Go between quotes.
func hold(ts *testscript.TestScript, _ bool, args []string) {
	acquire := func(l *mysqllock.Locker, name string) (*mysqllock.Lock, error) {
		return l.TryLock(context.Background(), name, 5*time.Second, mysqllock.AutoRenew)
	}
	switch {
	case len(args) == 3:
		args = args[1:]
		acquire = func(l *mysqllock.Locker, name string) (*mysqllock.Lock, error) {
			return l.TryRLock(context.Background(), name, 5*time.Second, mysqllock.AutoRenew)
		}
	case len(args) == 4:
		limit, err := strconv.Atoi(args[1])
		ts.Check(err)
		args = args[2:]
		acquire = func(l *mysqllock.Locker, name string) (*mysqllock.Lock, error) {
			return l.Semaphore(name, limit).TryAcquire(context.Background(), 5*time.Second, mysqllock.AutoRenew)
		}
	}
	var texts []string
	for _, arg := range args {
		text, err := strconv.Unquote(`"` + arg + `"`)
		ts.Check(err)
		texts = append(texts, text)
	}
	db := open(ts)
	l, err := mysqllock.New(db, mysqllock.WithIdentity(texts[1]))
	ts.Check(err)
	_, err = acquire(l, texts[0])
	ts.Check(err)
	ts.Defer(func() {
		l.Close()
		db.Close()
	})
}

// guard NAME PERIOD takes a lock, and has it under Guard for that time.
func guard(ts *testscript.TestScript, _ bool, args []string) {
	period, err := time.ParseDuration(args[1])
	ts.Check(err)
	db := open(ts)
	l, err := mysqllock.New(db)
	ts.Check(err)
	guarded, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- l.DoTx(context.Background(), args[0], 0, mysqllock.AutoRenew, nil, func(context.Context, *sql.Tx) error {
			close(guarded)
			time.Sleep(period)
			return nil
		})
	}()
	select {
	case <-guarded:
	case err := <-done:
		ts.Fatalf("guard: %v", err)
	}
	ts.Defer(func() {
		l.Close()
		db.Close()
	})
}

// lacks TEXT fails if the last output has TEXT in it, literally.
func lacks(ts *testscript.TestScript, _ bool, args []string) {
	for _, output := range []string{"stdout", "stderr"} {
		if strings.Contains(ts.ReadFile(output), args[0]) {
			ts.Fatalf("%s has %q in it", output, args[0])
		}
	}
}

// notables fails if there is a table in the script's database.
func noTables(ts *testscript.TestScript, _ bool, _ []string) {
	db := open(ts)
	defer db.Close()
	var n int
	ts.Check(db.QueryRow("SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()").Scan(&n))
	if n != 0 {
		ts.Fatalf("%d tables are left", n)
	}
}
