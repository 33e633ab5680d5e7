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
	ErrFixedClock      = errors.New("this session has a fixed timestamp, so that leases would be judged by a stopped clock: remove timestamp from the DSN")
)

// checkConn returns an error for a connection on which locks would be unsafe. It reads the settings of
// the database session once for all connections of the pool, but checks each time whether a
// transaction is open.
func (s *Store) checkConn(ctx context.Context, conn *sqlx.Conn) error {
	if !s.sessionsChecked.Load() {
		type session struct {
			Autocommit, Chained, Wide, Dirty, Logged bool
			Instant, Version                         string
		}
		var first, second session
		for _, look := range []*session{&first, &second} {
			if err := s.get(ctx, conn, look, "settings"); err != nil {
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
		s.chained.Store(first.Chained)
		s.wideCharset.Store(first.Wide)
		s.dirtyReads.Store(first.Dirty)
		s.logsStatements.Store(first.Logged)
		s.sessionsChecked.Store(true)
	}
	if s.chained.Load() {
		if _, err := s.exec(ctx, conn, s.command("commit")); err != nil {
			return NotSent{err}
		}
	} else if inTransaction(conn) {
		// An error that ended the transaction does not carry the flag, so ask.
		if _, err := s.exec(ctx, conn, s.command("ask_status")); err != nil {
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
	// otherServers report the version of the MySQL with which they are compatible before their own.
	otherServers = regexp.MustCompile(`(?i)tidb|vitess|oceanbase|tddl|polardb`)
)

// tooOld reports whether a server's version is known to lack SKIP LOCKED, which every renewal needs. An
// unknown version is assumed to be new enough.
func tooOld(version string) bool {
	version = strings.TrimPrefix(version, "5.5.5-") // a prefix of MariaDB for old clients
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

// Status flags of the protocol.
const (
	serverInTransaction = 1 << iota
	serverAutocommit
)

// serverStatus returns the status flags of the server's last reply on the connection. It reads an
// unexported field of the driver, because asking the server would double the number of statements. The
// flags are 0 with another driver, or with a wrapper that has no method Raw.
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

// inTransaction reports whether a transaction was open after the last reply.
func inTransaction(conn *sqlx.Conn) bool { return serverStatus(conn)&serverInTransaction != 0 }
