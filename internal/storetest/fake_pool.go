package storetest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/mysqllock/mysqllock/internal/store"
)

// A Statement is one that was executed, not queried, on the pool of a table.
type Statement struct {
	Query string
	Args  []any
}

// A Driver is the driver of a pool that has the table.
type Driver struct {
	Transactions *sql.DB // the pool on which a Locker begins transactions
	table        *Table
}

// NewDriver returns a driver for a table.
func NewDriver(t *Table) *Driver { return &Driver{table: t} }

// OpenTable returns the table as the process self sees it, a *[Store], and the pool for
// transactions.
func (d *Driver) OpenTable(self store.Process, label string) (table any, transactions *sql.DB) {
	s := d.table.NewStore(self)
	s.Label = label
	return s, d.Transactions
}

// Connect implements [driver.Connector].
func (d *Driver) Connect(context.Context) (driver.Conn, error) {
	return &conn{table: d.table}, d.table.available()
}

// Driver implements [driver.Connector].
func (d *Driver) Driver() driver.Driver { return d }

// Open implements [driver.Driver].
func (d *Driver) Open(string) (driver.Conn, error) { return d.Connect(context.Background()) }

// Committed returns the statements of transactions that were committed, and those that were
// executed outside of a transaction, in the order in which they took effect.
func (t *Table) Committed() []Statement {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.committed)
}

// available returns an error during an outage.
func (t *Table) available() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.outage
}

// A conn is a connection of the pool. Statements change one row, and queries find none.
type conn struct {
	table *Table
	tx    *tx // nil while none is open; protected by Table.mu
}

// A tx is a transaction. Table.mu protects its fields.
type tx struct {
	executed []Statement
	guarded  []*row
	ended    bool
}

// guard keeps the token of the row until the transaction, unless it is nil, has ended. The
// caller holds mu.
func (x *tx) guard(r *row) error {
	if x == nil {
		return nil
	}
	if x.ended {
		return sql.ErrTxDone
	}
	r.guards++
	x.guarded = append(x.guarded, r)
	return nil
}

// end ends the transaction, if one is open.
func (c *conn) end(commit bool) error {
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.tx == nil {
		return t.outage
	}
	for _, r := range c.tx.guarded {
		r.guards--
	}
	if commit && t.outage == nil {
		t.committed = append(t.committed, c.tx.executed...)
	}
	c.tx.ended = true
	c.tx = nil
	close(t.unguarded)
	t.unguarded = make(chan struct{})
	return t.outage
}

// Begin implements [driver.Conn].
func (c *conn) Begin() (driver.Tx, error) {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	if c.table.outage == nil {
		c.tx = new(tx)
	}
	return transaction{c}, c.table.outage
}

// BeginTx implements [driver.ConnBeginTx]. The options change nothing.
func (c *conn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c.Begin() }

// A transaction ends what Begin began.
type transaction struct{ *conn }

func (t transaction) Commit() error   { return t.end(true) }
func (t transaction) Rollback() error { return t.end(false) }

// Close implements [driver.Conn].
func (c *conn) Close() error {
	c.end(false)
	return nil
}

// Ping implements [driver.Pinger].
func (c *conn) Ping(context.Context) error { return c.table.available() }

// CheckNamedValue implements [driver.NamedValueChecker].
func (c *conn) CheckNamedValue(v *driver.NamedValue) error {
	if _, ok := v.Value.(*connArg); ok {
		return nil
	}
	return driver.ErrSkip
}

// ExecContext implements [driver.ExecerContext].
func (c *conn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	switch strings.ToUpper(query) {
	case "BEGIN", "START TRANSACTION":
		_, err := c.Begin()
		return driver.RowsAffected(0), err
	case "COMMIT":
		return driver.RowsAffected(0), c.end(true)
	case "ROLLBACK":
		return driver.RowsAffected(0), c.end(false)
	}
	executed := Statement{Query: query}
	for _, arg := range args {
		executed.Args = append(executed.Args, arg.Value)
	}
	t := c.table
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.outage != nil:
	case c.tx != nil:
		c.tx.executed = append(c.tx.executed, executed)
	default:
		t.committed = append(t.committed, executed)
	}
	return result{}, t.outage
}

// QueryContext implements [driver.QueryerContext].
func (c *conn) QueryContext(_ context.Context, _ string, args []driver.NamedValue) (driver.Rows, error) {
	for _, arg := range args {
		if arg, ok := arg.Value.(*connArg); ok {
			c.table.mu.Lock()
			arg.conn, arg.tx = c, c.tx
			c.table.mu.Unlock()
		}
	}
	return noRows{}, c.table.available()
}

// Prepare implements [driver.Conn].
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return &stmt{c, query}, c.table.available()
}

// A stmt is a prepared statement.
type stmt struct {
	*conn
	query string
}

func (s *stmt) Close() error  { return nil }
func (s *stmt) NumInput() int { return -1 }

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return s.conn.ExecContext(ctx, s.query, args)
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return s.conn.QueryContext(ctx, s.query, args)
}

func (s *stmt) Exec([]driver.Value) (driver.Result, error) { return nil, errors.ErrUnsupported }
func (s *stmt) Query([]driver.Value) (driver.Rows, error)  { return nil, errors.ErrUnsupported }

// A result is that of a statement that changed one row.
type result struct{}

func (result) LastInsertId() (int64, error) { return 1, nil }
func (result) RowsAffected() (int64, error) { return 1, nil }

type noRows struct{}

func (noRows) Columns() []string         { return nil }
func (noRows) Close() error              { return nil }
func (noRows) Next([]driver.Value) error { return io.EOF }
