// Package store is the library's table on a real server: every SQL statement, the
// connections they run on, and the classes of the server's errors.
//
// Every statement that writes a lock's row is conditional on the owner id of one
// acquisition and safe to repeat. A returned time named sent is the instant before
// the request left this process: the database cannot have judged the statement by an
// earlier time. A returned Process named next is the one that has waited longest for
// a row that the statement freed, 0 if none; of several rows, any that has one.
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
	label           string // literal
	self            Process
	sessionRow      string        // literal: the name of this process's session
	onlyConnTimeout time.Duration // of a statement while locks are held, in a pool of one connection
	sessionsChecked atomic.Bool   // prepare has read a session's settings
	chained         atomic.Bool   // completion_type=CHAIN: the application may leave transactions open in them
	wideCharset     atomic.Bool   // the sessions' charset would alter arguments
	dirtyReads      atomic.Bool   // the sessions see what is not committed
	logsStatements  atomic.Bool   // replicas execute the text of statements, without this server's listeners
	statements      atomic.Int64
	dead            atomic.Uint64 // the session that was last found dead, 0 at first
	bound           atomic.Bool   // a row may be bound to the last session
	forced          atomic.Int64  // the last forced release of this process's locks that was reported
	server          atomic.Int64  // to which the session was last renewed, and one; 0 at first
	sessions        aliveSessions
	prepared        prepared
	rowWaits        rowWaits
	sharedNames     sharedNames
	load            atomic.Int64 // acquires and releases in progress that may be combined
	takes           combiner[AcquireRequest, Grant]
	releases        combiner[Claim, freedRow]
	detached        sync.WaitGroup // statements whose callers may have returned
	lifetime        context.Context
	end             context.CancelFunc // ends lifetime; called by Close
	preparedTake    string             // sqlTake with arguments instead of literals
	preparedTakeAs  string             // the same for a request with a Holder
	preparedRelease string             // sqlRelease likewise
	preparedToNext  string             // sqlReleaseToNext likewise

	// Only Listen, Granted and CloseListener use the following.
	listener  *sqlx.Conn // nil while closed
	waitCount int64      // the pool's WaitCount when listener was last used
	signalled bool       // a signal has arrived on listener

	granted    *sqlx.Stmt // sqlGranted for one name, prepared on listener; nil if it is not
	unprepared bool       // the server refused to prepare it

	mu             sync.Mutex         // protects following fields
	held           int                // grants without a HoldEnded yet
	reservedConn   *sqlx.Conn         // idle connection kept from the pool while held > 0; nil while in use
	connReturned   chan struct{}      // capacity 1: reservedConn was set
	rowWaitsByName map[string]rowWait // by name
	limits         map[string]int     // by the keys of the semaphores whose wait queues this process may have joined
}

// New returns a Store for the table name, which CreateTable creates from schema. label
// is what operators see as the holder, self the process, lease that of AutoRenew. It
// sends nothing.
func New(db *sql.DB, schema, name, label string, self Process, lease time.Duration) (*Store, error) {
	quoted, err := QuoteTable(name)
	if err != nil {
		return nil, err
	}
	pool := sqlx.NewDb(db, "mysql")
	s := &Store{
		db: pool, schema: schema, prepared: prepared{db: pool}, name: quoted, label: literal(label), onlyConnTimeout: lease / 4,
		self: self, sessionRow: literal(sessionRow(self.String())),
		connReturned: make(chan struct{}, 1), rowWaitsByName: map[string]rowWait{}, limits: map[string]int{},
	}
	s.lifetime, s.end = context.WithCancel(context.Background())
	s.initCombiners()
	// Hexadecimal digits are the same in every charset.
	s.preparedTake = s.query(sqlTake, "owner", "?", "label", s.label, "lease", "?", "name", "UNHEX(?)", "dead", "?")
	s.preparedTakeAs = s.query(sqlTake, "owner", "?", "label", "UNHEX(?)", "lease", "?", "name", "UNHEX(?)", "dead", "?")
	s.preparedRelease = s.query(sqlRelease, "name", "UNHEX(?)", "owner", "?", "released", "?")
	s.preparedToNext = s.query(sqlReleaseToNext, "name", "UNHEX(?)", "owner", "?", "released", "?", "grant", "?")
	return s, nil
}

// Statements returns how many statements were sent.
func (s *Store) Statements() int64 { return s.statements.Load() }

// A Claim is one acquisition of one row. Its owner id is never used again.
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
	Limit    int     // of the permits that are held at the same time; for Permit only
	Holder   string  // label for operators; "" for that of the process
	MayClaim bool    // Exclusive only: claim the name if it is held shared; see Grant.Claimed
	Claimed  bool    // Exclusive only: the last grant to this claim was one with Claimed
	Replaces string  // Exclusive only: the owner id, of this process, that may be replaced; "" if the row must be free
	Replaced uint64  // the token that its row must have; 0 for any
	EnlistAs Process // joins the wait queue if the request is refused; 0 if nobody does
	Lease    time.Duration

	dead       SessionID // known to be dead; 0 if none was found yet
	absent     bool      // the row is known to be missing
	skipLocked bool      // the request must not wait for a transaction that has the row locked
}

// A Grant is the result of Acquire. Token is 0 if the request was refused.
type Grant struct {
	Token uint64
	// Claim is the row that was granted. With an error, it is the row that may have been
	// granted, or may be yet. Its key differs from that of the request unless the mode is
	// Exclusive.
	Claim Claim
	// Claimed means that the request must be sent again, to the same claim, until the
	// processes that hold the name shared have released it. Until then no other request for
	// the name is granted. The claim must be released if the caller gives up.
	Claimed   bool
	Remaining time.Duration // of the holder's lease, or of the reservation
	Lease     time.Duration // of a grant that a release made; 0 for that of the request
	// Only requests that join the wait queue learn of Granted and HandedOff for sure.
	Granted   bool      // refused, because a release has granted the row to this process: see Row.Grantee
	HandedOff bool      // refused, because a release has lately granted the row to another process, which will extend its lease
	Reserved  bool      // the row is free, but reserved for the head of the wait queue
	Locked    bool      // the row is free, but a transaction has it locked
	Next      Process   // Permit only: to be signalled, granted or not, because another slot is free; 0 if nobody
	Sent      time.Time // of the statement that set the lease
}

// A RowState is the result of Probe.
type RowState int

const (
	RowFree       RowState = iota // or held by the claim itself
	RowHeld                       // by another owner, or missing: a first grant waits for other statements
	RowLocked                     // by a transaction, such as a guard's, or by a statement that waits for one
	rowHeldLocked                 // both
)

// A Row is what Look reads of a row.
type Row struct {
	Owner     string
	Lease     time.Duration // what remains of the row's own lease; negative if it has expired
	Remaining time.Duration // the same, or what remains of the session that keeps the row, if that is more; 0 for a semaphore
	Grantee   Process       // to which a release has granted the row, for GrantLease after that; 0 if none has
	Next      Process       // head of the wait queue
	Listed    bool          // this process is in the wait queue
	Waiting   bool          // Listed, or the queue is full
}

// A Wakeup is why Listen returned.
type Wakeup struct {
	Signalled bool   // by another process
	Name      string // of a row that may be free, or whose wait queue lacks this process
	Missing   bool   // a row does not exist
	Forced    bool   // a lock of this process was freed by force
}

// BatchSize limits the rows of one statement. A batch of 1,000 rows holds other
// statements up for 5 ms, and from 1,000 elements on MariaDB turns IN into a
// join that locks the whole table
// (https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/).
const BatchSize = 800

// ReservedFor is how long a released row is reserved for the head of its wait queue,
// which takes a few milliseconds if it listens. A process that only polls gets 1.5 s.
// sql/fragments/reserved.sql contains both.
const ReservedFor = 250 * time.Millisecond

// GrantLease is the lease of a row that a release has granted to the head of its wait queue.
// The process extends it later. sql/release_to_next.sql and sql/fragments/granted_lately.sql
// contain it, too.
const GrantLease = 4 * time.Second

// TokenRange is how many tokens a grant covers, beginning with its own: a handoff
// inside the process takes the next one without writing to the row. A grant that replaces an
// owner by its token also covers those between the two. Tokens follow the clock in
// microseconds, and stay behind it as long as a name is granted less than 3,900 times a
// second. The statements contain this number, too.
const TokenRange = 256

// maxToken is above all tokens. The column of a shared hold has the next bit set: see join.sql.
const maxToken = 1<<62 - 1

// holdsBegan is called for n grants. HoldEnded undoes one of them.
func (s *Store) holdsBegan(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held += n
}

// HoldEnded must be called once for each grant, when its hold has ended. The last one
// returns the reserved connection to the pool.
func (s *Store) HoldEnded() {
	s.mu.Lock()
	var conn *sqlx.Conn
	if s.held--; s.held == 0 {
		conn, s.reservedConn = s.reservedConn, nil
	}
	s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// Close ends all statements, waits for them, and closes what was prepared on the
// connections of the pool. It does not close the pool.
func (s *Store) Close() {
	s.end()
	s.mu.Lock()
	for _, w := range s.rowWaitsByName {
		w.end()
	}
	s.mu.Unlock()
	s.detached.Wait()
	s.prepared.close()
}
