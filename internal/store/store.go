// Package store accesses the library's table on a real server. It has every SQL statement, the
// connections on which they run, and the classes of the server's errors.
//
// Every statement that writes a lock's row is conditional on the owner id of one acquisition, and
// safe to repeat. A result named sent is a time before the request left this process: the database
// cannot have judged the statement by an earlier time. A result named next is the process that has
// waited longest for a row that the statement freed, or 0 if none waits; if it freed several rows,
// next is for any of them.
package store

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"
)

// A Store sends the statements for one table on one pool. It is safe for concurrent
// use, except that Listen, Granted and CloseListener belong to one goroutine.
type Store struct {
	db              *sqlx.DB
	schema          string // CREATE TABLE for the default name
	name            string // quoted
	label           string // SQL literal of what operators see as the holder
	self            Process
	sessionRow      string        // SQL literal of the name of this process's session row
	constants       []string      // the placeholders that are the same in all statements, each followed by its text
	onlyConnTimeout time.Duration // limits a statement while locks are held, in a pool of one connection
	sessionsChecked atomic.Bool   // checkConn has read the settings of a database session
	chained         atomic.Bool   // completion_type=CHAIN: database sessions may have a transaction open
	wideCharset     atomic.Bool   // the charset of database sessions would alter arguments of prepared statements
	dirtyReads      atomic.Bool   // database sessions read uncommitted data
	logsStatements  atomic.Bool   // binlog_format=STATEMENT: replicas execute the statements, but lack this server's listeners
	statements      atomic.Int64
	dead            atomic.Uint64 // the session that was last found dead; 0 at first
	bound           atomic.Bool   // a row may be bound to this process's last session
	forced          atomic.Int64  // the last forced release of this process's locks that was reported
	server          atomic.Int64  // the server that last renewed the session, plus one; 0 at first
	prepared        prepared
	rowWaits        rowWaits
	aliveUntil      hints[SessionID, time.Time] // until when sessions of other processes are known to stay alive
	sharedNames     hints[string, bool]         // names whose rows this process has found in a mode other than 0: the next request claims them at once
	lastSlots       hints[string, int]          // the slots that this process last found, by the key of the wait queue
	waits           hints[string, int]          // what this process waits for: the limit of a semaphore, by the key of its wait queue; 1 for a name that it has claimed, and that is held shared
	load            atomic.Int64                // acquires and releases in progress that may share statements
	takes           combiner[AcquireRequest, Grant]
	releases        combiner[Claim, freedRow]
	detached        sync.WaitGroup // statements that may outlive their callers
	lifetime        context.Context
	end             context.CancelFunc // ends lifetime; called by Close
	preparedTake    string             // "take" with arguments instead of literals
	preparedTakeAs  string             // the same for a request with a Holder
	preparedRelease string             // "release" with arguments
	preparedToNext  string             // "release_to_next" with arguments

	// Only Listen, Granted and CloseListener use the following fields.
	listener  *sqlx.Conn // nil while closed
	waitCount int64      // the pool's WaitCount when listener was last used
	signalled bool       // a signal has arrived on listener

	preparedGranted *sqlx.Stmt // "granted" for one name, prepared on listener; nil if it is not prepared
	prepareRefused  bool       // the server has refused to prepare "granted"

	// An idle connection that is kept out of the pool while held > 0; capacity 1. It is sent to only under mu.
	reservedConn chan *sqlx.Conn

	mu   sync.Mutex // protects following fields
	held int        // grants for which HoldEnded was not called yet
}

// New returns a Store for the table called name, which CreateTable creates from schema. label is what
// operators see as the holder, self is the id of this process, and lease is the lease of AutoRenew.
// New sends nothing.
func New(db *sql.DB, schema, name, label string, self Process, lease time.Duration) (*Store, error) {
	quoted, err := QuoteTable(name)
	if err != nil {
		return nil, err
	}
	pool := sqlx.NewDb(db, "mysql")
	s := &Store{
		db: pool, schema: schema, prepared: prepared{db: pool}, name: quoted, label: literal(label), onlyConnTimeout: lease / 4,
		self: self, sessionRow: literal(sessionRow(self.String())),
		reservedConn: make(chan *sqlx.Conn, 1),
	}
	s.constants = []string{
		"t", s.name, "session", s.sessionRow,
		"self", self.literal(), "polling", self.Polling().literal(), "direct", self.Direct().literal(),
	}
	s.lifetime, s.end = context.WithCancel(context.Background())
	s.initCombiners()
	// Hexadecimal digits are the same in every charset.
	s.preparedTake = s.query("take", "owner", "?", "label", s.label, "lease", "?", "name", "UNHEX(?)", "dead", "?")
	s.preparedTakeAs = s.query("take", "owner", "?", "label", "UNHEX(?)", "lease", "?", "name", "UNHEX(?)", "dead", "?")
	s.preparedRelease = s.query("release", "name", "UNHEX(?)", "owner", "?", "released", "?")
	s.preparedToNext = s.query("release_to_next", "name", "UNHEX(?)", "owner", "?", "released", "?", "grant", "?")
	return s, nil
}

// Statements returns how many statements were sent.
func (s *Store) Statements() int64 { return s.statements.Load() }

// A Claim identifies one acquisition of one row. Its owner id is never used for another.
type Claim struct{ Name, Owner string }

// Names returns the names of claims.
func Names(cs []Claim) []string {
	names := make([]string, len(cs))
	for i, c := range cs {
		names[i] = c.Name
	}
	return names
}

// An AcquireRequest is the argument of Acquire.
type AcquireRequest struct {
	Claim            // its Name is the QueueName of the request
	Mode     Mode    // the zero value is Exclusive
	Limit    int     // Permit only: of the permits that are held at the same time
	Holder   string  // label for operators; "" for that of the process
	MayClaim bool    // Exclusive only: the request claims the name if it is held shared; see Grant.Claimed
	Claimed  bool    // Exclusive only: the last Grant for this claim had Claimed set
	Replaces string  // Exclusive only: the owner id of this process that the request replaces; "" if the row must be free
	Replaced uint64  // the token that the row of Replaces must have; 0 for any
	EnlistAs Process // the id that joins the wait queue if the request is refused; 0 if none does
	Lease    time.Duration

	dead       SessionID // a session that is known to be dead; 0 if none is
	absent     bool      // the row is known to be missing
	skipLocked bool      // the request must not wait for a transaction that has the row locked
}

// A Grant is the result of Acquire. Token is 0 if the request was refused.
type Grant struct {
	Token uint64
	// Claim is the claim that was granted. With an error, it is the claim that may have been
	// granted, or may still be granted. Its key differs from that of the request unless the mode
	// is Exclusive.
	Claim Claim
	// Claimed means that the request has claimed the name, and must be sent again with the same
	// claim until the processes that hold the name shared have released it. Until then no other
	// request for the name is granted. If the caller gives up, it must release the claim.
	Claimed   bool
	Remaining time.Duration // what is left of the holder's lease, or of the reservation
	Lease     time.Duration // of a grant that a release has made; 0 if it is that of the request
	// Granted and HandedOff are reliable only for requests that join the wait queue.
	Granted   bool      // refused, because a release has granted the row to this process: see Row.Grantee
	HandedOff bool      // refused, because a release has recently granted the row to another process, which will extend its lease
	Reserved  bool      // the row is free, but reserved for the head of the wait queue
	Locked    bool      // the row is free, but a transaction has it locked
	Next      Process   // Permit only: the process that the caller must signal, granted or not, because another slot is free; 0 if none
	Sent      time.Time // when the statement that set the lease was sent
}

// A RowState is the result of Probe. A row that is both held and locked has the sum of the two states.
type RowState int

const (
	RowFree   RowState = iota // or held by the claim itself
	RowHeld                   // held by another owner; or missing, while a first grant of the claim waits for other statements
	RowLocked                 // locked by a transaction, such as a guard's, or by a statement that waits for one
)

// A Row is what Look reads from a row.
type Row struct {
	Owner     string
	Lease     time.Duration // what is left of the row's own lease; negative if it has expired
	Remaining time.Duration // what is left of the row's lease or of the session that keeps it, whichever is more; 0 for a semaphore
	Grantee   Process       // the process to which a release has granted the row within GrantLease; 0 if none has
	Next      Process       // head of the wait queue
	Listed    bool          // this process is in the wait queue
	Waiting   bool          // Listed, or the queue is full
}

// A Wakeup is why Listen returned.
type Wakeup struct {
	Signalled bool   // another process has signalled this one
	Name      string // the name of a row that may be free, or whose wait queue does not list this process
	Missing   bool   // one of the rows does not exist
	Forced    bool   // a lock of this process was freed by force
}

// BatchSize limits the rows of one statement. A batch of 1,000 rows delays other statements by 5 ms;
// and MariaDB turns an IN with 1,000 elements or more into a join that locks the whole table
// (https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/).
const BatchSize = 800

// ReservedFor is how long a released row is reserved for the head of its wait queue. A process that
// listens takes the row within a few milliseconds. For one that only polls, it is reserved for 1.5 s.
// sql/fragments/reserved.sql contains both times.
const ReservedFor = 250 * time.Millisecond

// GrantLease is the lease of a row that a release has granted to the head of its wait queue, until
// that process extends it. sql/release_to_next.sql and sql/fragments/granted_recently.sql contain the
// same time.
const GrantLease = 4 * time.Second

// TokenRange is how many tokens a grant covers, beginning with its own: a handoff inside the process
// uses the next one without writing to the row. A grant that replaces an owner with a given token
// also covers the tokens in between. Tokens follow the clock in microseconds; they do not get ahead
// of it while a name is granted less than 3,900 times a second. The statements contain the same
// number.
const TokenRange = 256

// maxToken is above all tokens. In the row of a shared hold, the token has the next bit set: see shared_bit.sql.
const maxToken = 1<<62 - 1

// holdsBegan counts n grants, for each of which HoldEnded must be called.
func (s *Store) holdsBegan(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held += n
}

// HoldBegan counts a grant of Granted, for which HoldEnded must be called.
func (s *Store) HoldBegan() { s.holdsBegan(1) }

// HoldEnded must be called once for each grant, when its hold has ended. When no hold is left, it
// returns the reserved connection to the pool.
func (s *Store) HoldEnded() {
	s.mu.Lock()
	var conn *sqlx.Conn
	if s.held--; s.held == 0 {
		select {
		case conn = <-s.reservedConn:
		default:
		}
	}
	s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// Close ends all statements, waits for them, and closes the prepared statements on the connections
// of the pool. It does not close the pool.
func (s *Store) Close() {
	s.end()
	s.rowWaits.mu.Lock()
	for _, w := range s.rowWaits.rows {
		if w.end != nil {
			w.end()
		}
	}
	s.rowWaits.mu.Unlock()
	s.detached.Wait()
	s.prepared.close()
}
