package store

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-sql-driver/mysql"
)

var (
	ErrRowLocked = errors.New("a transaction has the row locked")
	ErrNoTable   = errors.New("no such table")
	ErrNotOwned  = errors.New("the row has another owner")
)

// errorNumber returns the server's error number, or 0 if the error is not from the server. MySQL may
// report an unknown error if KILL QUERY ends an UPDATE of several tables, such as that of a batch;
// errorNumber returns 1317 for it.
func errorNumber(err error) uint16 {
	if refused, ok := errors.AsType[*mysql.MySQLError](err); ok {
		if refused.Number == 1105 && refused.Message == "An error occurred in multi-table update" {
			return 1317
		}
		return refused.Number
	}
	return 0
}

// Answered reports whether the server has replied and keeps serving the connection.
func Answered(err error) bool { return err == nil || errorNumber(err) != 0 && !ended(err) }

// ended reports whether the connection of the statement has ended. A proxy reports the end of its own
// connection to the server with an error number of the client library, 2000 to 2999, which no server
// uses
// (https://dev.mysql.com/doc/mysql-errors/8.4/en/client-error-reference.html).
func ended(err error) bool {
	switch n := errorNumber(err); n {
	case 1053, 1927, 1152, 1184, 3169, 4031: // shutdown, killed, aborted, killed (X plugin), idle for too long
		return true
	default:
		return 2000 <= n && n < 3000
	}
}

// Demoted reports whether the server refuses all writes, or, as a member that has left its group, all
// clients.
func Demoted(err error) bool {
	n := errorNumber(err)
	return err == ErrDemoted || n == 1290 || n == 1836 || n == 3032 // option prevents the statement, read-only mode, offline mode
}

// NotSent wraps an error that occurred before the statement could reach the server.
type NotSent struct{ Err error }

func (e NotSent) Error() string { return e.Err.Error() }
func (e NotSent) Unwrap() error { return e.Err }

// PartlySent wraps the error of a request that consists of several statements, of which an earlier one
// may have changed a row.
type PartlySent struct{ Err error }

func (e PartlySent) Error() string { return e.Err.Error() }
func (e PartlySent) Unwrap() error { return e.Err }

// PoolExhausted wraps the error of a wait for a connection of a pool that could open no more. Any other
// timeout of such a wait means that opening a connection took too long.
type PoolExhausted struct{ error }

func (e PoolExhausted) Unwrap() error { return e.error }

// Describe adds to a server's error what the user can do about it. The numbers are listed at
// https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html.
func Describe(err error) error {
	switch errorNumber(err) {
	case 1146: // ER_NO_SUCH_TABLE
		return fmt.Errorf("%w: call Locker.CreateTable or apply schema.sql: %w", ErrNoTable, err)
	case 1054: // ER_BAD_FIELD_ERROR
		return fmt.Errorf("the table is that of another version of the library (CHANGELOG has the ALTER TABLE): %w", err)
	case 1290, 1792, 1836: // read-only server, transaction, mode
		return fmt.Errorf("the server or the session is read-only (a replica or a demoted primary? rejectReadOnly=true in the DSN makes the pool reconnect): %w", err)
	case 1045, 1698: // access denied, with or without a password
		return fmt.Errorf("the server refuses the account that the DSN names: %w", err)
	case 1044, 1142, 1143: // access to the database, table, column denied
		return fmt.Errorf("a privilege is missing (SELECT, INSERT and UPDATE on the table; DELETE for Purge, CREATE for CreateTable): %w", err)
	}
	return err
}

// Transient reports whether a statement that failed with err may succeed if it is sent again.
func Transient(err error) bool {
	switch errorNumber(err) {
	case 0:
		// The connection broke, could not be opened, or did not reply in time.
		return !final(err)
	case 1317, 1907, 1969, 3024, // interrupted by KILL QUERY or a time limit; 1907 by ProxySQL
		1040, 1203, 1226, // too many connections: to the server, of a user, of this account
		1047, 1180, // a Galera node without quorum; found so while it committed
		3032, 3100, 3168, // offline mode; a group that could not decide on the commit; a server that is starting
		9001, 9002, 9004: // ProxySQL has no backend to send the statement to
		return true
	}
	return Contended(err) || ended(err)
}

// Contended reports whether a statement failed because of another one on the same row: a deadlock, a
// lock wait timeout, a locked row (NOWAIT), a row that has changed since the snapshot (MariaDB), or a
// conflict in a group at commit.
func Contended(err error) bool {
	if errors.Is(err, ErrRowLocked) {
		return true
	}
	switch errorNumber(err) {
	case 1213, 1205, 3572, 1020, 3101:
		return true
	}
	return false
}

// LockWaitTimedOut reports whether the server ended a statement that waited for a lock, either of a row or
// of the whole table.
func LockWaitTimedOut(err error) bool { return errorNumber(err) == 1205 }

// rejected reports whether a server's error proves that the statement changed nothing, because it did not
// begin, or the server rolled it back. These errors do not prove that:
//   - an interruption (1317, 1907): ProxySQL also reports one when it loses the backend that it asked to
//     stop the statement;
//   - the end or the lack of a connection: a proxy that lost the first reply sends the statement again,
//     and reports the error of the last try;
//   - a rollback by a group (3101): an expelled member rolls back what the others may have received.
func rejected(n uint16) bool {
	switch n {
	case 1213, 1205, 3572, 1020, 1969, 3024, // rolled back: deadlock, lock wait timeout, locked (NOWAIT), changed since the snapshot, time limits of the server
		1223, 1290, 1792, 1836, 3098, // read-locked; read-only server, transaction, mode; a table or session that a group does not take
		1044, 1142, 1143, 1227, 1370, 3566, // a privilege or right is missing
		1046, 1049, 1054, 1064, 1146, 1193, 1305, // no or unknown database, column, syntax, table, variable, function
		1175, 1100, // sql_safe_updates; beside LOCK TABLES
		1210, 1243, 1295, 1461, 1615, // the prepared statement
		1048, 1062, 1264, 1265, 1292, 1364, 1366, 1406, 1411, 1690, // values that the table does not take
		1114, 1153, // the table is full; the statement is too long
		1047, 1665: // a Galera node without quorum takes no statement; one that binlog_format does not allow
		return true
	}
	return false
}

// final reports whether an error that is not from the server will occur again.
func final(err error) bool {
	return errors.Is(err, ErrDemoted) || errors.Is(err, ErrAutocommit) || errors.Is(err, ErrFixedClock) || errors.Is(err, errTransactionOpen) || errors.Is(err, errTooOld) || errors.Is(err, mysql.ErrPktTooLarge) ||
		strings.HasSuffix(err.Error(), "sql: database is closed") // database/sql does not export it
}

// OutcomeUnknown reports whether a statement that failed may have been executed, or may still be
// executed. In that case its effect must be undone.
func OutcomeUnknown(err error) bool {
	switch {
	case errors.As(err, new(PartlySent)):
		return true
	case err == nil, errors.As(err, new(NotSent)):
		return false
	case errorNumber(err) != 0:
		return !rejected(errorNumber(err))
	}
	return !final(err)
}
