package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

// The classes of an error, as a set.
const (
	waitedOut  = 1 << iota // the statement is sent again within the caller's time
	retriedNow             // even by a call that does not wait: others were at the row
	undone                 // the statement may have been executed
	connEnded              // the connection is not kept for later statements
	connLeft               // the connection is closed: it leads to a server that does not write
)

func classOf(err error) (class int) {
	for bit, is := range map[int]bool{
		waitedOut: Transient(err), retriedNow: Contended(err), undone: OutcomeUnknown(err), connEnded: !Answered(err), connLeft: Demoted(err),
	} {
		if is {
			class |= bit
		}
	}
	return class
}

// Only an error that proves that a statement was not executed lets it go without
// an undo.
func TestErrorClasses(t *testing.T) {
	for _, c := range []struct {
		number uint16
		class  int
		reason string
	}{
		// Rolled back by the server.
		{1213, waitedOut | retriedNow, "deadlock: the transaction was rolled back"},
		{1205, waitedOut | retriedNow, "lock wait timeout: the statement was rolled back"},
		{1020, waitedOut | retriedNow, "changed since the snapshot (MariaDB): the transaction was rolled back"},
		{1969, waitedOut, "max_statement_time (MariaDB): the statement was rolled back"},
		{3024, waitedOut, "max_execution_time (MySQL): the statement was a SELECT"},
		{3101, waitedOut | retriedNow | undone, "rolled back by a group; of an expelled member, others may have received it"},

		// Not begun.
		{1064, 0, "syntax"},
		{1146, 0, "no such table"},
		{1049, 0, "no such database"},
		{1142, 0, "privilege on the table"},
		{1044, 0, "privilege on the database"},
		{3566, 0, "MySQL Router with connection sharing: LAST_INSERT_ID is refused"},
		{1290, connLeft, "read-only: the connection leads to a replica"},
		{1836, connLeft, "read-only mode: likewise"},
		{1792, 0, "read-only transaction: the session is"},
		{1047, waitedOut, "a Galera node without quorum"},
		{1062, 0, "duplicate key: the statement was rolled back"},

		// Interrupted: proven by the server, but not by ProxySQL, which reports it when
		// it has lost a backend that it told to stop.
		{1317, waitedOut | undone, "KILL QUERY"},
		{1907, waitedOut | undone, "query timeout of ProxySQL"},

		// The outcome of the commit is not known.
		{1180, waitedOut | undone, "error during commit"},
		{3100, waitedOut | undone, "a group that failed after the transaction was broadcast"},
		{1105, undone, "unknown error, of whatever is between"},
		{1030, undone, "of the storage engine"},

		// The end of a connection, seen by the server or by a proxy.
		{1053, waitedOut | undone | connEnded, "shutdown"},
		{1927, waitedOut | undone | connEnded, "connection killed (MariaDB, MaxScale)"},
		{1152, waitedOut | undone | connEnded, "connection aborted"},
		{1184, waitedOut | undone | connEnded, "connection aborted before the login"},
		{4031, waitedOut | undone | connEnded, "idle for too long"},
		{3169, waitedOut | undone | connEnded, "session killed"},
		{2002, waitedOut | undone | connEnded, "a proxy cannot connect: to a socket"},
		{2003, waitedOut | undone | connEnded, "a proxy cannot connect: its try before may have been executed"},
		{2005, waitedOut | undone | connEnded, "a proxy cannot connect: unknown host"},
		{2006, waitedOut | undone | connEnded, "a proxy's backend has gone away"},
		{2013, waitedOut | undone | connEnded, "a proxy's backend was lost in mid-statement"},
		{2055, waitedOut | undone | connEnded, "a proxy's backend was lost, and where"},

		// A connection could not be had. As the answer to a statement it comes from a
		// proxy whose try before may have been executed.
		{1040, waitedOut | undone, "too many connections"},
		{1203, waitedOut | undone, "max_user_connections"},
		{1226, waitedOut | undone, "connection limit of the account"},
		{3168, waitedOut | undone, "the server is starting"},
		{9001, waitedOut | undone, "ProxySQL: no backend in time"},
		{9002, waitedOut | undone, "ProxySQL: too many failed connects"},
		{9004, waitedOut | undone, "ProxySQL: backend offline"},
		{9006, undone, "ProxySQL: locked to another hostgroup, which does not pass"},
		{1045, undone, "access denied, on the second try of a proxy"},
		{3032, waitedOut | undone | connLeft, "offline mode, also of a member that left its group; statements under way are killed"},
	} {
		t.Run(fmt.Sprint(c.number), func(t *testing.T) {
			err := error(&mysql.MySQLError{Number: c.number})
			for _, err := range []error{err, fmt.Errorf("while: %w", err), Describe(err)} {
				require.Equal(t, c.class, classOf(err), "%s", c.reason)
			}
			// An error from before the statement was sent is no result of it.
			require.False(t, OutcomeUnknown(NotSent{err}))
			require.Equal(t, c.class&^undone, classOf(NotSent{err}))
		})
	}
	for _, c := range []struct {
		err   error
		class int
	}{
		{&mysql.MySQLError{Number: 1105, Message: "An error occurred in multi-table update"}, waitedOut | undone}, // KILL QUERY
		{mysql.ErrInvalidConn, waitedOut | undone | connEnded},
		{driver.ErrBadConn, waitedOut | undone | connEnded},
		{context.DeadlineExceeded, waitedOut | undone | connEnded},
		{ErrPanic, waitedOut | undone | connEnded},
		{sql.ErrConnDone, waitedOut | undone | connEnded},
		{ErrDemoted, connEnded | connLeft},
		{ErrAutocommit, connEnded},
		{ErrFixedClock, connEnded},
		{mysql.ErrPktTooLarge, connEnded},
		{errors.New("sql: database is closed"), connEnded},
	} {
		require.Equal(t, c.class, classOf(c.err), "%v", c.err)
	}
}

// Servers without SKIP LOCKED are refused; an unknown version is not.
func TestTooOld(t *testing.T) {
	for version, want := range map[string]bool{
		"8.0.46": false, "8.4.9-log": false, "9.7.4": false, "8.0.30-cluster": false, "10.0.1": false, "8.0.36-28.1": false,
		"8.0.mysql_aurora.3.04.0": false, "8.0.35-azure": false, "8.0.30-0ubuntu0.22.04.1": false,
		"5.7.44": true, "5.7.44-log": true, "5.7.44-48-57-log": true, "5.6.51": true, "5.5.62": true, "5.7.mysql_aurora.2.11.2": true,
		"10.6.0-MariaDB": false, "10.11.14-MariaDB-0+deb12u2": false, "11.4.2-MariaDB": false, "12.0.1-MariaDB-log": false,
		"5.5.5-10.6.12-MariaDB": false, "10.6.17-12-MariaDB-enterprise": false, "11.8.3-mariadb": false,
		"10.5.26-MariaDB": true, "5.5.5-10.5.26-MariaDB-log": true, "10.3.39-MariaDB-0ubuntu0.20.04.2": true, "5.5.68-MariaDB": true,
		"5.7.25-TiDB-v7.5.0": false, "8.0.11-TiDB-v8.1.0": false, "5.7.9-Vitess": false, "5.7.25-OceanBase-v4.2.1.0": false, "5.7.25-TDDL-5.4.19": false,
		"": false, "my_favorite_version": false, "v5.7": false, "5": false, "5.": false, ".7": false,
		"99999999999999999999.1": false, "5.99999999999999999999": true,
	} {
		require.Equal(t, want, tooOld(version), "%q", version)
	}
}
