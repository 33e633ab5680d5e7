package store

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
)

// table is the repository on a real server.
type Store struct {
	db              *sqlx.DB
	schema          string // CREATE TABLE for the default name
	name            string // quoted
	label           string // literal
	self            Process
	onlyConnTimeout time.Duration // bounds a statement, beside locks that are held, in a pool of one connection
	sessionsChecked atomic.Bool   // the sessions were looked at
	chained         atomic.Bool   // completion_type=CHAIN: the application may leave transactions open in them
	wideCharset     atomic.Bool   // the sessions have a charset in which arguments are not taken as they are
	statements      atomic.Int64
	prepared        prepared
	rowWaits        rowWaits
	detached        sync.WaitGroup // statements that their callers may have left
	lifetime        context.Context
	end             context.CancelFunc // of lifetime, by close
	preparedTake    string             // sqlTake and sqlRelease with arguments
	preparedRelease string

	// Of listen and hush alone.
	listener  *sqlx.Conn // the connection that listens; nil if none does
	waitCount int64      // how often anybody had waited for a connection when ear was last used

	mu             sync.Mutex         // guards the following
	held           int                // grants that were not relinquished
	reservedConn   *sqlx.Conn         // idle connection kept from the pool while terms > 0; nil while in use
	connReturned   chan struct{}      // capacity 1: spare was set
	rowWaitsByName map[string]rowWait // by name
}

func New(db *sql.DB, schema, name, label string, me Process, lease time.Duration) (*Store, error) {
	quoted, err := QuoteTable(name)
	if err != nil {
		return nil, err
	}
	pool := sqlx.NewDb(db, "mysql")
	t := &Store{
		db: pool, schema: schema, prepared: prepared{db: pool}, name: quoted, label: literal(label), self: me, onlyConnTimeout: lease / 4,
		connReturned: make(chan struct{}, 1), rowWaitsByName: map[string]rowWait{},
	}
	t.lifetime, t.end = context.WithCancel(context.Background())
	// Hexadecimal digits are the same in every charset.
	t.preparedTake = t.query(sqlTake, "owner", "?", "label", t.label, "lease", "?", "name", "UNHEX(?)")
	t.preparedRelease = t.query(sqlRelease, "name", "UNHEX(?)", "owner", "?", "released", "?")
	return t, nil
}

// Statements returns how many statements were sent.
func (t *Store) Statements() int64 { return t.statements.Load() }

// A claim is one acquisition of one row: its owner id is never used again.
type Claim struct{ Name, Owner string }

func Names(cs []Claim) []string {
	names := make([]string, len(cs))
	for i, c := range cs {
		names[i] = c.Name
	}
	return names
}

// A bid is what acquire asks for.
type AcquireRequest struct {
	Claim
	Lease    time.Duration
	Replaces string  // the owner id, of this process, that alone may be replaced; "": nobody's must be there
	EnlistAs Process // who is to be listed as waiting if it is refused; 0: nobody
}

// A grant answers acquire: a token, or what is left of the holder's lease.
type Grant struct {
	Token     uint64
	Remaining time.Duration
	Reserved  bool // nobody holds the row, but it is another waiter's turn to ask
	Locked    bool // nobody holds the row, but a transaction has it locked
	Sent      time.Time
}

// A rowState is what probe finds.
type RowState int

const (
	RowFree       RowState = iota // or the claim's own
	RowHeld                       // by another owner, or missing: a first grant waits for others
	RowLocked                     // by a transaction, be it a guard's, or by statements that wait for one
	rowHeldLocked                 // both
)

// A row is what look sees: who has it and for how long yet (negative: expired),
// and who waits for it.
type Row struct {
	Owner     string
	Remaining time.Duration
	Next      Process
	Waiting   bool // this process waits for it, as far as the row can tell
	Listed    bool // this process stands in its list
}

// What listen has heard: a ring; a name that may be free, or must be asked for
// again for the process to be listed; or that a row is missing.
type Wakeup struct {
	Signalled bool
	Name      string
	Missing   bool
}

// batchSize bounds the rows of one statement. A batch of 1,000 rows holds other
// statements up for 5 ms, and from 1,000 elements on MariaDB turns IN into a
// join that locks the whole table
// (https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/).
const BatchSize = 800

// handover is how long a row that came free is kept for the process that is
// first in its list, which needs a few milliseconds if it is well. One that can
// only look gets a second and a half. Both stand in sqlReserved.
const ReservedFor = 250 * time.Millisecond

// tokenRange is how many tokens a grant covers, its own the first: a lock that
// passes on inside the process takes the next without writing to the row. Tokens
// stay behind the clock in microseconds, which they follow, as long as a name is
// granted less than 3,900 times a second. It also stands in the statements.
const TokenRange = 256

// granted counts what is held, until relinquish.
func (t *Store) granted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.held++
}

func (t *Store) HoldEnded() {
	t.mu.Lock()
	var conn *sqlx.Conn
	if t.held--; t.held == 0 {
		conn, t.reservedConn = t.reservedConn, nil
	}
	t.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// close leaves nothing behind in the sessions of the pool.
func (t *Store) Close() {
	t.end()
	t.mu.Lock()
	for _, w := range t.rowWaitsByName {
		w.end()
	}
	t.mu.Unlock()
	t.detached.Wait()
	t.prepared.close()
}
