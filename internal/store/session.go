package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/jmoiron/sqlx"
)

var (
	ErrAutocommit      = errors.New("this session has autocommit off, so that a lock would not be visible to others: set autocommit=1 in the DSN")
	ErrDemoted         = errors.New("the server is read-only")
	errTransactionOpen = errors.New("the application left a transaction open in this connection of its pool, so that a lock would not be visible to others and would be gone with a rollback: begin transactions with DB.BeginTx")
	errTooOld          = errors.New("requires MySQL 8.0 or MariaDB 10.6, or later")
	ErrFixedClock      = errors.New("this session has a fixed timestamp, so that leases would be judged by a standing clock: remove timestamp from the DSN")
)

// prepare looks once at a session of the pool, and refuses those in which the
// statements would be wrong.
func (t *Store) prepare(ctx context.Context, conn *sqlx.Conn) error {
	if !t.sessionsChecked.Load() {
		type session struct {
			Autocommit, Chained, Wide bool
			Instant, Version          string
		}
		var first, second session
		for _, s := range []*session{&first, &second} {
			t.statements.Add(1)
			if err := conn.GetContext(ctx, s, sqlSession); err != nil {
				return NotSent{err}
			}
		}
		switch {
		case !first.Autocommit:
			return ErrAutocommit
		case first.Instant == second.Instant:
			return ErrFixedClock
		case tooOld(first.Version):
			return fmt.Errorf("%w; the server is %q", errTooOld, first.Version)
		}
		t.chained.Store(first.Chained)
		t.wideCharset.Store(first.Wide)
		t.sessionsChecked.Store(true)
	}
	if t.chained.Load() {
		t.statements.Add(1)
		if _, err := conn.ExecContext(ctx, sqlSettle); err != nil {
			return NotSent{err}
		}
	} else if inTransaction(conn) {
		// Or it has ended with an error, which does not carry the flag.
		t.statements.Add(1)
		if _, err := conn.ExecContext(ctx, "DO 0"); err != nil {
			return NotSent{err}
		}
		switch serverStatus(conn) & (serverInTransaction | serverAutocommit) {
		case serverInTransaction | serverAutocommit:
			return NotSent{errTransactionOpen}
		case serverInTransaction:
			return NotSent{ErrAutocommit}
		}
	}
	return nil
}

var (
	versionNumbers = regexp.MustCompile(`^(\d+)\.(\d+)`)
	// otherServers have versions of their own; the number before is that of the
	// MySQL whose protocol they speak.
	otherServers = regexp.MustCompile(`(?i)tidb|vitess|oceanbase|tddl|polardb`)
)

// tooOld reports whether a server's version is known to lack SKIP LOCKED, without
// which no lease can be renewed. What it cannot read is taken to be new enough.
func tooOld(version string) bool {
	version = strings.TrimPrefix(version, "5.5.5-") // what MariaDB puts before it for old clients
	numbers := versionNumbers.FindStringSubmatch(version)
	if numbers == nil || otherServers.MatchString(version) {
		return false
	}
	major, _ := strconv.Atoi(numbers[1])
	minor, _ := strconv.Atoi(numbers[2])
	if strings.Contains(strings.ToLower(version), "mariadb") {
		return major < 10 || major == 10 && minor < 6
	}
	return major < 8
}

// Flags of the protocol's answers.
const (
	serverInTransaction = 1 << iota
	serverAutocommit
)

// serverStatus returns the flags of the server's last answer on the connection.
// The driver keeps them and does not export them; to ask for what they say would
// cost each statement of the library another one. They are unknown, and returned as
// 0, with another driver, and with one that wraps this one and has no method Raw.
func serverStatus(conn *sqlx.Conn) (flags uint64) {
	conn.Raw(func(raw any) error {
		for {
			wrapper, ok := raw.(interface{ Raw() driver.Conn })
			if !ok {
				break
			}
			raw = wrapper.Raw()
		}
		v := reflect.Indirect(reflect.ValueOf(raw))
		if v.Kind() != reflect.Struct || v.Type().PkgPath() != "github.com/go-sql-driver/mysql" {
			return nil
		}
		if status := v.FieldByName("status"); status.IsValid() && status.CanUint() {
			flags = status.Uint()
		}
		return nil
	})
	return flags
}

// inTransaction reports whether a transaction is open in the session, as far as
// the server's last answer said so.
func inTransaction(conn *sqlx.Conn) bool { return serverStatus(conn)&serverInTransaction != 0 }
