package mysqllocktest

import (
	"database/sql"
	"errors"
	"testing"

	"github.com/mysqllock/mysqllock"
	"github.com/mysqllock/mysqllock/internal/fakestore"
)

// New returns a Locker on a [Table] of its own. It is closed when the test ends.
func New(tb testing.TB, opts ...mysqllock.Option) *mysqllock.Locker {
	tb.Helper()
	return NewTable(tb).New(opts...)
}

// A Table is a database in memory that has nothing but the library's table, whatever name
// [mysqllock.WithTable] gives it. It is safe for concurrent use, and belongs to one test.
type Table struct {
	tb     testing.TB
	rows   *fakestore.Table
	driver *fakestore.Driver
	db     *sql.DB
}

// NewTable returns an empty table. It ends with the test.
func NewTable(tb testing.TB) *Table {
	rows := fakestore.NewTable()
	t := &Table{tb: tb, rows: rows, driver: fakestore.NewDriver(rows)}
	t.db = sql.OpenDB(t.driver)
	t.UseDB(t.db)
	tb.Cleanup(func() { t.db.Close() })
	return t
}

// New returns a Locker on the table, which is closed when the test ends. Two of them are as
// those of two processes: they exclude each other, and have different holders in the table. An
// invalid option ends the test.
func (t *Table) New(opts ...mysqllock.Option) *mysqllock.Locker {
	t.tb.Helper()
	locker, err := mysqllock.New(t.db, opts...)
	if err != nil {
		t.tb.Fatal(err)
	}
	t.tb.Cleanup(func() {
		t.Available()
		if err := locker.Close(); err != nil {
			t.tb.Error(err)
		}
	})
	return locker
}

// DB returns the pool of the table, for code that calls [mysqllock.New] itself or begins
// transactions. Each statement on it changes one row, each query returns none, and no SQL is
// checked. [Table.Committed] returns what was executed. The pool is closed when the test ends.
func (t *Table) DB() *sql.DB { return t.db }

// UseDB makes [mysqllock.Locker.DoTx], of Lockers that are created from now on, begin its
// transactions on db instead of [Table.DB]: on a mock, or on a database in memory with the tables
// of the service. Guard does not know the end of these transactions; see [What differs].
//
// [What differs]: #hdr-What_differs_from_a_server
func (t *Table) UseDB(db *sql.DB) { t.driver.Transactions = db }

// A Statement is one that was executed on [Table.DB]. Queries are not recorded.
type Statement struct {
	Query string
	Args  []any
}

// Committed returns the statements of transactions that were committed, and those that were
// executed outside of a transaction, in the order in which they took effect.
func (t *Table) Committed() []Statement {
	var all []Statement
	for _, s := range t.rows.Committed() {
		all = append(all, Statement(s))
	}
	return all
}

// Unavailable makes the database unavailable: from now on every statement of the Lockers, and
// of [Table.DB], fails with err, or with an error of this package if err is nil. Transactions
// that are open are rolled back, and also fail later. Locks are lost if this lasts for their
// leases.
func (t *Table) Unavailable(err error) {
	if err == nil {
		err = errUnavailable
	}
	t.rows.SetOutage(err)
}

var errUnavailable = errors.New("mysqllocktest: the database is unavailable")

// Available ends what [Table.Unavailable] began.
func (t *Table) Available() { t.rows.SetOutage(nil) }
