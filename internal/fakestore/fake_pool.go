package fakestore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/go-sql-driver/mysql"

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
	d.table.mu.Lock()
	defer d.table.mu.Unlock()
	return &conn{table: d.table, outages: d.table.outages}, d.table.outage
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

// SetOutage makes every statement fail with err, and breaks the connections of the pool: this
// rolls their transactions back. It ends calls of Listen. The table is available again after
// SetOutage(nil).
func (t *Table) SetOutage(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.outage = err; err == nil {
		return
	}
	t.outages++
	for _, r := range t.rows {
		r.guards = 0
	}
	t.transactionEnded()
	for p := range t.listeners {
		t.signal(p)
	}
}

// transactionEnded wakes those that wait for guards. The caller holds mu.
func (t *Table) transactionEnded() {
	close(t.unguarded)
	t.unguarded = make(chan struct{})
}

// A conn is a connection of the pool. Statements change one row, and queries find none.
type conn struct {
	table   *Table
	outages int // of the table, when the connection was opened
	tx      *tx // nil while none is open; protected by Table.mu
}

// A tx is a transaction. Table.mu protects its fields.
type tx struct {
	executed []Statement
	guarded  []*row
	ended    bool
}

// usable returns an error during an outage, and on a connection that one has broken. The caller
// holds mu.
func (c *conn) usable() error {
	switch {
	case c.table.outage != nil:
		return c.table.outage
	case c.outages != c.table.outages:
		return mysql.ErrInvalidConn
	}
	return nil
}

// guard keeps the token of a row until a transaction of the connection ends. The caller holds
// mu.
func (c *conn) guard(x *tx, r *row) error {
	if err := c.usable(); err != nil {
		return err
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
	x, err := c.tx, c.usable()
	if x == nil {
		return err
	}
	c.tx, x.ended = nil, true
	if err != nil {
		return err // the outage has rolled it back
	}
	for _, r := range x.guarded {
		r.guards--
	}
	if commit {
		t.committed = append(t.committed, x.executed...)
	}
	t.transactionEnded()
	return nil
}

// Begin implements [driver.Conn]. It commits a transaction that is open.
func (c *conn) Begin() (driver.Tx, error) {
	c.end(true)
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	err := c.usable()
	if err == nil {
		c.tx = new(tx)
	}
	return transaction{c}, err
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
func (c *conn) Ping(context.Context) error {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	return c.usable()
}

// ResetSession implements [driver.SessionResetter].
func (c *conn) ResetSession(ctx context.Context) error {
	if c.Ping(ctx) != nil {
		return driver.ErrBadConn // the pool opens another
	}
	return nil
}

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
	if err := c.usable(); err != nil {
		return nil, err
	}
	if c.tx != nil {
		c.tx.executed = append(c.tx.executed, executed)
	} else {
		t.committed = append(t.committed, executed)
	}
	return result{}, nil
}

// QueryContext implements [driver.QueryerContext].
func (c *conn) QueryContext(_ context.Context, _ string, args []driver.NamedValue) (driver.Rows, error) {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	for _, arg := range args {
		if arg, ok := arg.Value.(*connArg); ok {
			arg.conn, arg.tx = c, c.tx
		}
	}
	return noRows{}, c.usable()
}

// Prepare implements [driver.Conn].
func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return &stmt{c, query}, c.Ping(context.Background())
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
