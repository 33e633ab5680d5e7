package mysqllock

import (
	"context"
	cryptorand "crypto/rand"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
)

// Schema is the table that the library keeps its locks in, as one CREATE TABLE
// statement for the default name. [Locker.CreateTable] applies it.
//
//go:embed schema.sql
var Schema string

// repository is what terms and waiters need of the table. Each method is one
// statement and one round trip, but for acquire on a name that has no row yet or
// for which others wait (two) and on the very first call (two more, to look at
// the session).
//
// Every statement is conditional on the owner id of one acquisition and safe to
// repeat. sent is the instant before the request left this process: the
// database cannot have judged the statement by an earlier time. An heir is the
// process that has waited longest for a row that a statement freed, 0 if none;
// of several rows, any that has one.
type repository interface {
	// acquire takes the row if nobody holds it. Every grant is followed by one
	// call of relinquish.
	acquire(ctx context.Context, b bid) (grant, error)
	// probe tells what keeps the claim's statement, which is under way, from being
	// answered. It waits for nobody.
	probe(ctx context.Context, c claim) (rowState, error)
	// extend prolongs one lease, and leaves holds as it is if that is 0. It waits for
	// the row if a transaction has it locked, or returns errRowLocked if this process
	// waits for that row already, or for too many. The end of ctx ends the call, not
	// the statement.
	extend(ctx context.Context, c claim, lease time.Duration, holds int) (mine bool, sent time.Time, err error)
	// renew prolongs many, passing over rows that somebody has locked, and leaves
	// holds as it is if that is 0. Those that were passed over, gone, or already
	// promised for longer are not counted in renewed.
	renew(ctx context.Context, cs []claim, lease time.Duration, holds int) (renewed int, sent time.Time, err error)
	// look reads what the rows of the names say; a name without row is missing.
	look(ctx context.Context, names []string) (rows map[string]row, sent time.Time, err error)
	// owned returns the claims whose rows are still theirs. It reads what was
	// committed, at every isolation level: a look may see a change of owner that is
	// rolled back later.
	owned(ctx context.Context, cs []claim) ([]claim, error)
	// confirm reports whether a row is the claim's. Its answer may be false by
	// mistake, as that of look, but never true. The end of ctx ends the call, not the
	// statement.
	confirm(ctx context.Context, c claim) (mine bool, sent time.Time, err error)
	// release frees the row if it is still the claim's, and waits for it as extend
	// does.
	release(ctx context.Context, c claim) (freed bool, heir process, err error)
	// releaseAll frees many, passing over rows that somebody has locked.
	releaseAll(ctx context.Context, cs []claim) (freed int64, heir process, err error)
	// relinquish tells that a granted term is over.
	relinquish()

	// listen blocks until the process is rung, d has passed, or there is cause to
	// ask for one of the names. Only one call may be under way.
	listen(ctx context.Context, names []string, d time.Duration) (heard, error)
	// hush ends the listening: from then on the process cannot be rung.
	hush()
	// usedUp tells whether listening takes a connection that is needed.
	usedUp() bool
	// ring ends the call of listen of a process; alive is false if it does not
	// listen.
	ring(ctx context.Context, p process) (alive bool, err error)
	// strike takes a process off the lists of those who wait, passing over rows that
	// somebody has locked. all is false if it was struck off fewer than all.
	strike(ctx context.Context, names []string, p process) (heir process, all bool, err error)
}

// A process is the id of a Locker in the lists of those who wait, where it has 19
// digits: the first is at least 4 if it listens, less if it can only look. 0 is
// nobody, and no id is a token.
type process uint64

const (
	firstProcess = 5e18
	hushed       = 35e17 // is taken off the id of one who can only look
)

func newProcess() process { return firstProcess + process(rand.Uint64N(2e18)) }

func (p process) silent() process { return p - hushed }
func (p process) listens() bool   { return p >= firstProcess }
func (p process) String() string  { return strconv.FormatUint(uint64(p), 10) }
func (p process) literal() string { return "_ascii'" + p.String() + "'" }

// A claim is one acquisition of one row: its owner id is never used again.
type claim struct{ name, owner string }

// newOwnerID returns the id of one acquisition: the process, a dash, and 64 bits
// from the kernel. Anything that a process keeps itself, a counter or the state of
// a generator, repeats when its image is restored from a snapshot, and the
// statements would take the copy's request for one that they granted before. All
// ids have one length: a row that grows or shrinks is written anew.
func newOwnerID(p process) string {
	var random [8]byte
	cryptorand.Read(random[:])
	id := append(strconv.AppendUint(make([]byte, 0, 33), uint64(p), 10), '-')
	return string(ownerEncoding.AppendEncode(id, random[:]))
}

var ownerEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

func namesOf(cs []claim) []string {
	names := make([]string, len(cs))
	for i, c := range cs {
		names[i] = c.name
	}
	return names
}

// A bid is what acquire asks for.
type bid struct {
	claim
	lease time.Duration
	from  string  // the owner id, of this process, that alone may be replaced; "": nobody's must be there
	list  process // who is to be listed as waiting if it is refused; 0: nobody
}

// A grant answers acquire: a token, or what is left of the holder's lease.
type grant struct {
	token    uint64
	left     time.Duration
	reserved bool // nobody holds the row, but it is another waiter's turn to ask
	locked   bool // nobody holds the row, but a transaction has it locked
	sent     time.Time
}

// A rowState is what probe finds.
type rowState int

const (
	rowFree       rowState = iota // or the claim's own
	rowHeld                       // by another owner, or missing: a first grant waits for others
	rowLocked                     // by a transaction, be it a guard's, or by statements that wait for one
	rowHeldLocked                 // both
)

// A row is what look sees: who has it and for how long yet (negative: expired),
// and who waits for it.
type row struct {
	owner  string
	left   time.Duration
	heir   process
	listed bool // this process waits for it, as far as the row can tell
	named  bool // this process stands in its list
}

// What listen has heard: a ring; a name that may be free, or must be asked for
// again for the process to be listed; or that a row is missing.
type heard struct {
	rung    bool
	name    string
	missing bool
}

// batchSize bounds the rows of one statement. A batch of 1,000 rows holds other
// statements up for 5 ms, and from 1,000 elements on MariaDB turns IN into a
// join that locks the whole table
// (https://mariadb.com/kb/en/conversion-of-big-in-predicates-into-subqueries/).
const batchSize = 800

// table is the repository on a real server.
type table struct {
	db         *sqlx.DB
	name       string // quoted
	label      string // literal
	me         process
	alone      time.Duration // bounds a statement, beside locks that are held, in a pool of one connection
	trusted    atomic.Bool   // the sessions were looked at
	chained    atomic.Bool   // completion_type=CHAIN: the application may leave transactions open in them
	wide       atomic.Bool   // the sessions have a charset in which arguments are not taken as they are
	statements atomic.Int64
	prepared   prepared
	rowWaits   rowWaits
	detached   sync.WaitGroup // statements that their callers may have left
	lifetime   context.Context
	end        context.CancelFunc // of lifetime, by close
	takeOften  string             // sqlTake and sqlRelease with arguments
	giveUp     string

	// Of listen and hush alone.
	ear   *sqlx.Conn // the connection that listens; nil if none does
	waits int64      // how often anybody had waited for a connection when ear was last used

	mu       sync.Mutex         // guards the following
	terms    int                // grants that were not relinquished
	spare    *sqlx.Conn         // idle connection kept from the pool while terms > 0; nil while in use
	returned chan struct{}      // capacity 1: spare was set
	waiting  map[string]rowWait // by name
}

func newTable(db *sql.DB, name, label string, me process, lease time.Duration) (*table, error) {
	quoted, err := quoteTable(name)
	if err != nil {
		return nil, err
	}
	pool := sqlx.NewDb(db, "mysql")
	t := &table{
		db: pool, prepared: prepared{db: pool}, name: quoted, label: literal(label), me: me, alone: lease / 4,
		returned: make(chan struct{}, 1), waiting: map[string]rowWait{},
	}
	t.lifetime, t.end = context.WithCancel(context.Background())
	// Hexadecimal digits are the same in every charset.
	t.takeOften = t.query(sqlTake, "owner", "?", "label", t.label, "lease", "?", "name", "UNHEX(?)")
	t.giveUp = t.query(sqlRelease, "name", "UNHEX(?)", "owner", "?", "released", "?")
	return t, nil
}

// handover is how long a row that came free is kept for the process that is
// first in its list, which needs a few milliseconds if it is well. One that can
// only look gets a second and a half. Both stand in sqlReserved.
const handover = 250 * time.Millisecond

// tokenRange is how many tokens a grant covers, its own the first: a lock that
// passes on inside the process takes the next without writing to the row. Tokens
// stay behind the clock in microseconds, which they follow, as long as a name is
// granted less than 3,900 times a second. It also stands in the statements.
const tokenRange = 256

// The statements. {t} is the table, {me} this process; UTC_TIMESTAMP(6) is one
// instant within a statement, and expires_at alone decides who holds. Assignments
// read the row either before the statement or after the assignments left of them
// (sql_mode SIMULTANEOUS_ASSIGNMENT of MariaDB), so columns are written after
// everything that depends on them. LAST_INSERT_ID(x) carries x to the client in
// the answer to the statement itself: a token is positive, what is left of
// another's lease negative, and of what is reserved there is no more to say.
// (https://dev.mysql.com/doc/refman/8.4/en/information-functions.html#function_last-insert-id)
const (
	sqlNow = "UTC_TIMESTAMP(6)"

	// A new token is above all that the last holder could give out, and above
	// every token granted earlier by this clock on a server whose last grants did
	// not reach this one.
	sqlMicros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + sqlNow + ")"

	// {r} qualifies the columns of the row.
	sqlReserved = `GREATEST({r}expires_at, {r}released_at)
    BETWEEN ` + sqlNow + ` - INTERVAL IF(LEFT({r}waiters, 1) < _ascii'4', 1500000, 250000) MICROSECOND AND ` + sqlNow
	sqlForMe  = `{r}expires_at <= ` + sqlNow + ` AND ({r}waiters = x'' OR LEFT({r}waiters, 19) IN ({me}, {silent}) OR NOT (` + sqlReserved + `))`
	sqlListed = `(LOCATE({me}, {r}waiters) > 0 OR LOCATE({silent}, {r}waiters) > 0)`
	sqlLeft   = `IF({r}expires_at > ` + sqlNow + `, -TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, {r}expires_at), -4611686018427387904)`

	// Who takes the row is not waiting any more; a first waiter who did not take
	// it in time is struck off, or one who died would hold up every handoff. A row
	// that is held was taken by the same statement before, sent twice.
	sqlUnlisted = `IF({r}waiters = x'', x'', REPLACE(REPLACE(
      IF(LEFT({r}waiters, 19) IN ({me}, {silent}) OR {r}expires_at > ` + sqlNow + `, {r}waiters, SUBSTRING({r}waiters, 20)), {me}, x''), {silent}, x''))`

	// The short way, where nobody waits. Its answer is -1 if somebody does, and
	// the row is free. Without autocommit a grant would be a promise that nobody
	// else can see: there every statement matches nothing. A proxy that has lost the
	// reply may send an acquiring statement again: each recognizes its own grant.
	sqlTake = `UPDATE {t} SET owner = {owner}, holder = {label}, holds = 1,
  token = LAST_INSERT_ID(GREATEST(token + 256, ` + sqlMicros + `)), acquired_at = ` + sqlNow + `,
  expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND
WHERE name = {name} AND @@autocommit AND IF(expires_at <= ` + sqlNow + ` AND waiters = x'', 1,
  0 * LAST_INSERT_ID(IF(owner = {owner} AND expires_at > ` + sqlNow + `, CAST(token AS SIGNED),
    -GREATEST(1, TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, expires_at)))))`

	// One owner of this process takes over from another. The token moves, so that
	// a guard that is open is waited for.
	sqlReplace = `UPDATE {t} SET holds = 1, token = LAST_INSERT_ID(GREATEST(token + 256, ` + sqlMicros + `)),
  acquired_at = ` + sqlNow + `, expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND, owner = {owner}
WHERE name = {name} AND owner IN ({from}, {owner}) AND @@autocommit`

	// The long way, which goes by the list, and can enter who was refused. Once
	// owner was assigned, it alone tells.
	sqlTaken      = `{r}owner = {owner} OR ` + sqlForMe
	sqlTakeOrList = `
  owner = IF(` + sqlForMe + `, {owner}, {r}owner),
  token = IF(` + sqlTaken + `, LAST_INSERT_ID(GREATEST({r}token + 256, ` + sqlMicros + `)), {r}token + 0 * LAST_INSERT_ID(` + sqlLeft + `)),
  holds = IF(` + sqlTaken + `, 1, {r}holds),
  holder = IF(` + sqlTaken + `, {label}, {r}holder),
  acquired_at = IF(` + sqlTaken + `, ` + sqlNow + `, {r}acquired_at),
  waiters = IF(` + sqlTaken + `, ` + sqlUnlisted + `,
    IF({list} = x'' OR ` + sqlListed + ` OR LENGTH({r}waiters) > 1000, {r}waiters, CONCAT({r}waiters, {list}))),
  expires_at = IF(` + sqlTaken + `, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND, {r}expires_at)`

	sqlAsk = `UPDATE {t} SET` + sqlTakeOrList + `
WHERE name = {name} AND @@autocommit`

	// The shared lock on the high-water row makes Purge wait for this statement
	// and this statement for Purge: without it a token could fall behind one
	// that was deleted while the statement was under way. Its alias is a name that
	// {t} cannot have.
	sqlWater  = "`high water`"
	sqlInsert = `INSERT INTO {t} (name, owner, holder, holds, token, acquired_at, expires_at)
SELECT {name}, {owner}, {label}, 1, LAST_INSERT_ID(GREATEST(COALESCE(` + sqlWater + `.token, 0) + 256, ` + sqlMicros + `)),
  ` + sqlNow + `, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND
FROM (SELECT @@autocommit AS trusted) AS s LEFT JOIN {t} AS ` + sqlWater + ` ON ` + sqlWater + `.name = x'' WHERE s.trusted
LOCK IN SHARE MODE
ON DUPLICATE KEY UPDATE` + sqlTakeOrList

	// The same for a row that a transaction may have locked: without a place in
	// rowWaits, no statement waits for a row. The derived table locks the row and its
	// entry in the guard index, and passes over both if anybody has either locked.
	sqlUnlocked = `{t} AS p FORCE INDEX (PRIMARY) STRAIGHT_JOIN {t} AS g FORCE INDEX (guard) ON g.token = p.token AND g.name = p.name
  WHERE p.name = {name}`
	sqlTakeUnlocked = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ UPDATE (
  SELECT p.name FROM ` + sqlUnlocked + ` AND {forMe} AND @@autocommit
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET l.holder = {label}, l.holds = 1, l.acquired_at = ` + sqlNow + `, l.waiters = {unlisted},
  l.token = LAST_INSERT_ID(GREATEST(l.token + 256, ` + sqlMicros + `)),
  l.owner = {owner}, l.expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND`
	sqlWhyNot = sqlUnlimited + ` ` + sqlLeft + ` AS answer, @@autocommit AS autocommit, (` + sqlForMe + `) + 0 AS mine, (` + sqlListed + ` OR LENGTH(waiters) > 1000) + 0 AS listed
FROM {t} FORCE INDEX (PRIMARY) WHERE name = {name} LIMIT 1`
	sqlEnlist = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ UPDATE (
  SELECT name FROM {t} FORCE INDEX (PRIMARY) WHERE name = {name} AND NOT ` + sqlListed + ` AND LENGTH(waiters) <= 1000 AND @@autocommit
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET l.waiters = CONCAT(l.waiters, {list})`
	sqlProbe = sqlUnlimited + ` r.owner <> {owner} AND r.expires_at > ` + sqlNow + ` AS held, (
  SELECT COUNT(*) FROM (SELECT p.name FROM ` + sqlUnlocked + ` LIMIT 1 FOR UPDATE SKIP LOCKED) AS u
) AS unlocked
FROM {t} AS r FORCE INDEX (PRIMARY) WHERE r.name = {name} LIMIT 1`

	sqlExtend = `UPDATE {t} SET holds = {holds},
  token = token + 0 * LAST_INSERT_ID(1),
  expires_at = GREATEST(expires_at, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND)
WHERE name = {name} AND owner = {owner} AND @@autocommit`

	// The derived table picks and locks the rows, and passes over those that
	// somebody has locked. MySQL would merge it without the LIMIT, and both
	// servers would scan, and lock, a small table as a whole without FORCE INDEX.
	// MariaDB, which alone reads the comment, does not see that the join goes by
	// the key.
	sqlPick = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ UPDATE (
  SELECT name FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) AND `
	sqlPicked = ` AND @@autocommit
  LIMIT {count} FOR UPDATE SKIP LOCKED
) AS mine STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name`
	sqlMine = sqlPick + `owner IN ({owners})` + sqlPicked

	// A late older renewal cannot shorten a newer one. A further column to be
	// written makes it a fifth dearer on MySQL.
	sqlRenew = sqlMine + `
SET {holds}l.expires_at = GREATEST(l.expires_at, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND)`

	// The token stays: its index entry, which a guard may have locked, too. Who
	// waits is told by LAST_INSERT_ID. A dash ends an owner id as well as nothing in
	// its place would, and the row stays as long as it is: one that grows or shrinks
	// is written anew.
	sqlFirst = `LEFT({r}waiters, 19)`
	sqlFree  = `{r}owner = INSERT({r}owner, 1, 1, _ascii'-'), ` + sqlFreed
	sqlFreed = `{r}holds = IF({r}waiters = x'', 0, 0 * LAST_INSERT_ID(` + sqlFirst + `)),
  {r}released_at = ` + sqlNow + `, {r}expires_at = '1970-01-01'`

	// What was released may be released again: a proxy that has lost the reply may
	// send the statement twice. sqlForce leaves another sign than the dash, so a
	// holder whose lock was taken away does not find it released.
	sqlRelease    = `UPDATE {t} SET ` + sqlFree + ` WHERE name = {name} AND owner IN ({owner}, {released}) AND @@autocommit`
	sqlReleaseAll = sqlMine + `
SET ` + sqlFree

	// What a demoted primary says of the rows is the past. It refuses to write, but
	// a connection that only reads would stay with it for good. The variable is a
	// number, or from MariaDB 12 on a word.
	sqlDemoted = `CAST(@@global.read_only AS CHAR) NOT IN (_ascii'0', _ascii'OFF')`

	// What the library reads for itself ends when its context does, not by a time
	// limit that is meant for queries of the application.
	sqlUnlimited = `/*M! SET STATEMENT max_statement_time = 60 FOR */ SELECT /*+ MAX_EXECUTION_TIME(60000) */`

	// An explicit LIMIT overrules sql_select_limit. What is selected is never a
	// mere column, because columnsWithAlias would put the table before its name.
	sqlLook = sqlUnlimited + ` CAST(name AS BINARY) AS name, CAST(owner AS BINARY) AS owner, TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, expires_at) AS micros,
  IF(waiters = x'', 0, CAST(` + sqlFirst + ` AS UNSIGNED)) AS heir, ` + sqlListed + ` OR LENGTH(waiters) > 1000 AS listed, ` + sqlListed + ` AS named, ` + sqlDemoted + ` AS demoted
FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) LIMIT {count}`

	// It holds for the next transaction, which is the next statement.
	sqlReadCommitted = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED`

	// What is asked of the rows and the sleep are one statement: a ring cannot
	// come between them. Only a ring ends the sleep early, or lets it fail.
	sqlListen = sqlUnlimited + ` CAST(a.hit AS BINARY) AS hit, a.demoted + 0 AS demoted, IF(a.hit IS NULL AND NOT a.demoted, SLEEP({seconds}), 0) AS rung FROM (
  SELECT ` + sqlDemoted + ` AS demoted, IF(COUNT(*) < {count}, x'', MIN(IF(` + sqlForMe + ` OR NOT ` + sqlListed + ` AND LENGTH(waiters) <= 1000, name, NULL))) AS hit
  FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names})
) AS a`

	// A listener sleeps, and that is no slow query. MySQL has slow_query_log for the
	// whole server alone; MariaDB alone reads the comment.
	sqlNotSlow = `SET SESSION /*M! slow_query_log = 0, */ long_query_time = 31536000`

	// The name of the bell is held by the connection that listens, and resolves to
	// that connection and no other.
	sqlBell = `SELECT GET_LOCK(_ascii'mysqllock:{id}', 0)`
	sqlRing = `KILL QUERY IS_USED_LOCK(_ascii'mysqllock:{id}')`

	// What is struck off a row that is free passes the ring on.
	sqlStruck = `{r}holds = {r}holds + IF({r}expires_at <= ` + sqlNow + ` AND LENGTH({r}waiters) > 19 AND LEFT({r}waiters, 19) IN ({process}, {mute}),
    0 * LAST_INSERT_ID(SUBSTRING({r}waiters, 20, 19)), 0),
  {r}waiters = REPLACE(REPLACE({r}waiters, {process}, x''), {mute}, x'')`
	sqlLists  = `(LOCATE({process}, waiters) > 0 OR LOCATE({mute}, waiters) > 0)`
	sqlStrike = sqlPick + sqlLists + sqlPicked + `
SET ` + sqlStruck

	// Read only from the index, this locks nothing but the entry of the index: a
	// guard that is open is waited for there, and hinders no renewal.
	sqlGuardNow = `SELECT token + 0 FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LOCK IN SHARE MODE`

	// If there is no such entry, sqlGuardNow locks the gap in which the entry would
	// be, under REPEATABLE READ: the end of the index, if the row was deleted, where
	// every grant would wait. So the derived table first looks for the entry without
	// a lock. The LIMIT keeps MySQL from merging it, and SERIALIZABLE locks there, too.
	sqlGuard = `SELECT l.token + 0 FROM (
  SELECT token, name FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LIMIT 1
) AS seen STRAIGHT_JOIN {t} AS l FORCE INDEX (guard) ON l.token = seen.token AND l.name = seen.name LOCK IN SHARE MODE`

	// Force moves the token, so that a guard fails from then on. It waits for one
	// that is open at the index, where it does not yet hinder renewals. While it
	// waits, further guards wait behind it, also if its caller has given up: so the
	// server ends the statement after a second, whatever the limit of the session.
	sqlHolder = `SELECT CAST(owner AS BINARY) AS owner, token + 0 AS token FROM {t} FORCE INDEX (PRIMARY) WHERE name = {name} AND expires_at > ` + sqlNow + ` LIMIT 1`
	sqlSeize  = `/*M! SET STATEMENT max_statement_time = 1 FOR */ SELECT /*+ MAX_EXECUTION_TIME(1000) */ token + 0 AS token FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LIMIT 1 FOR UPDATE`
	sqlForce  = `UPDATE {t} SET token = token + 256, owner = INSERT(owner, 1, 1, _ascii'!'), ` + sqlFreed + `
WHERE name = {name} AND token = {token} AND expires_at > ` + sqlNow + ``

	sqlInfo = `SELECT CAST(name AS BINARY) AS name, CAST(owner AS BINARY) AS owner, CAST(holder AS BINARY) AS holder,
  holds + 0 AS holds, token + 0 AS token,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', acquired_at) AS acquired,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', expires_at) AS expires,
  TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, expires_at) AS micros, LENGTH(waiters) DIV 19 AS waiters
FROM {t} `

	sqlInspect = sqlInfo + `WHERE name = {name} LIMIT 1`
	sqlList    = sqlInfo + `WHERE name <> x'' AND expires_at > ` + sqlNow + ` ORDER BY {t}.name LIMIT 18446744073709551615`

	sqlMark   = `INSERT INTO {t} (name) VALUES (x'') ON DUPLICATE KEY UPDATE name = x''`
	sqlMarked = `SELECT COUNT(*) FROM {t} WHERE name = x'' LIMIT 1`

	sqlIdle = `name <> x'' AND expires_at <= ` + sqlNow + ` - INTERVAL {idle} MICROSECOND AND released_at <= ` + sqlNow + ` - INTERVAL {idle} MICROSECOND`

	// Purge works along the primary key. The locking read goes through the guard
	// index to pass over rows that a guard has locked.
	sqlIdleNames = `SELECT CAST(name AS BINARY) AS name, token + 0 AS token FROM {t} FORCE INDEX (PRIMARY)
WHERE name > {name} AND ` + sqlIdle + ` ORDER BY {t}.name LIMIT {count}`
	sqlHighWater = `SELECT token + 0 AS token FROM {t} WHERE name = x'' LIMIT 1 FOR UPDATE`
	sqlIdleLock  = `SELECT CAST(name AS BINARY) AS name, token + 0 AS token FROM {t} FORCE INDEX (guard)
WHERE token IN ({tokens}) AND ` + sqlIdle + ` LIMIT 18446744073709551615 FOR UPDATE SKIP LOCKED`
	sqlRaise = `UPDATE {t} SET token = GREATEST(token, {token}) WHERE name = x''`
	// Looked for directly, many names would be looked for in the whole table, and
	// every locked row of it waited for. Deleting by an alias needs a default database.
	sqlPickedRows = "`picked rows`" // which {t} cannot be called
	sqlDelete     = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ DELETE {t} FROM (
  SELECT name FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) LIMIT {count} FOR UPDATE SKIP LOCKED
) AS ` + sqlPickedRows + ` STRAIGHT_JOIN {t} FORCE INDEX (PRIMARY) ON {t}.name = ` + sqlPickedRows + `.name`

	sqlSession = sqlUnlimited + ` @@autocommit AS autocommit, @@completion_type = 'CHAIN' AS chained, CAST(NOW(6) AS CHAR) AS instant,
  @@character_set_connection IN ('utf16', 'utf16le', 'utf32', 'ucs2') AS wide, CAST(@@version AS BINARY) AS version`
	sqlSettle = `COMMIT AND NO CHAIN NO RELEASE`
)

// query puts the table, this process, and pairs of placeholder and text into a
// statement. The texts are literals and numbers: an argument would cost a second
// round trip on every DSN without interpolateParams.
func (t *table) query(statement string, pairs ...string) string {
	var b strings.Builder
	b.Grow(2 * len(statement))
	for {
		text, rest, more := strings.Cut(statement, "{")
		b.WriteString(text)
		if !more {
			return b.String()
		}
		var placeholder string
		placeholder, statement, _ = strings.Cut(rest, "}")
		switch placeholder {
		case "t":
			b.WriteString(t.name)
		case "me":
			b.WriteString(t.me.literal())
		case "silent":
			b.WriteString(t.me.silent().literal())
		default:
			if i := slices.Index(pairs, placeholder); i >= 0 { // but for {r}, which may be nothing
				b.WriteString(pairs[i+1])
			}
		}
	}
}

func micros(d time.Duration) string { return strconv.FormatInt(d.Microseconds(), 10) }

// duration is what so many microseconds are, or the most that a Duration can be.
func duration(micros int64) time.Duration {
	const most = math.MaxInt64 / int64(time.Microsecond)
	return time.Duration(max(-most, min(micros, most))) * time.Microsecond
}

func (t *table) acquire(ctx context.Context, b bid) (g grant, err error) {
	var answer int64
	err = t.on(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		take := t.takeUnlocked
		if t.rowWaits.enter(acquireWaits, b.name, t.acquirePlaces()) {
			take = t.takeInPlace
		}
		answer, g.sent, err = take(ctx, conn, b)
		if err == nil && answer > 0 {
			t.granted() // before conn goes back: it may stay as the spare
		}
		return err
	})
	if err == nil && answer == absent {
		answer, g.sent, err = t.takeFirst(ctx, b)
	}
	switch {
	case err != nil:
		return grant{}, err
	case answer > 0:
		g.token = uint64(answer)
	case answer == locked:
		g.locked = true
	case answer == reserved:
		g.left, g.reserved = handover, true
	case answer < 0:
		g.left = duration(-answer)
	case b.from == "":
		return grant{}, errAutocommit
	}
	return g, nil
}

// granted counts what is held, until relinquish.
func (t *table) granted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.terms++
}

// takeInPlace is take with a place in rowWaits, which it gives up if the
// statement cannot have been left in the server.
func (t *table) takeInPlace(ctx context.Context, conn *sqlx.Conn, b bid) (answer int64, sent time.Time, err error) {
	left := false
	defer func() {
		if !left {
			t.rowWaits.leave(acquireWaits, b.name)
		}
	}()
	answer, sent, err = t.take(ctx, conn, b)
	if err != nil && ctx.Err() != nil {
		left, err = true, &leftWaiting{err, b.claim, acquireWaits}
	}
	return answer, sent, err
}

// acquirePlaces is how many acquiring statements may wait in the server for
// locked rows, each for another one. A small pool spares none: its connections
// are needed for what is held.
func (t *table) acquirePlaces() int {
	limit := t.db.Stats().MaxOpenConnections
	if limit == 0 {
		return maxPlaces
	}
	return min(limit/4, maxPlaces)
}

const maxPlaces = 8

// bidding puts a bid into a statement; r qualifies the columns of the row.
func (t *table) bidding(b bid, statement, r string) func() string {
	return func() string {
		list := "x''"
		if b.list != 0 {
			list = b.list.literal()
		}
		return t.query(statement, "name", literal(b.name), "owner", literal(b.owner), "from", literal(b.from),
			"label", t.label, "lease", micros(b.lease), "list", list, "r", r)
	}
}

// take acquires by statements that wait for the row if a transaction has it
// locked.
func (t *table) take(ctx context.Context, conn *sqlx.Conn, b bid) (answer int64, sent time.Time, err error) {
	ask := command{text: t.bidding(b, sqlAsk, "")}
	var first command
	switch {
	case b.from != "":
		first.text = t.bidding(b, sqlReplace, "")
	case b.list != 0:
		first = ask
	default:
		first = command{t.bidding(b, sqlTake, ""), t.takeOften, []any{b.owner, b.lease.Microseconds(), hex.EncodeToString([]byte(b.name)), b.owner}}
	}
	answer, sent, err = t.ask(ctx, conn, first)
	if err == nil && answer == -1 {
		answer, sent, err = t.ask(ctx, conn, ask)
	}
	if answer == 0 && b.from == "" {
		answer = absent
	}
	return answer, sent, err
}

// takeFirst acquires a lock that has no row yet. Its statement also needs the
// high-water row and a gap in the index, which a transaction may have locked; what
// it waits for cannot be told from outside. So it is not cut off: it runs to its
// end with its connection, and as many others wait for a place here, not in the
// server.
func (t *table) takeFirst(ctx context.Context, b bid) (answer int64, sent time.Time, err error) {
	most := max(1, t.acquirePlaces())
	switch ok, err := t.rowWaits.enterFirst(ctx, b.name, most); {
	case err != nil:
		return 0, sent, notSent{err}
	case !ok:
		return locked, time.Now(), nil
	}
	type result struct {
		answer int64
		sent   time.Time
	}
	var mu sync.Mutex // guards the following
	granted, gone := false, false
	own, cancel := context.WithTimeout(t.lifetime, lockWaitLimit)
	began := time.Now()
	r, err := detach(ctx, t, own, cancel, false, func(ctx context.Context, conn *sqlx.Conn) (r result, err error) {
		r.answer, r.sent, err = t.ask(ctx, conn, command{text: t.bidding(b, sqlInsert, t.name+".")})
		mu.Lock()
		defer mu.Unlock()
		granted = r.answer > 0 && !gone
		switch {
		case granted:
			t.granted()
		case r.answer > 0: // nobody wants it any more
			_, _, err = t.freeOn(ctx, conn, t.releasing(b.claim))
		}
		return r, err
	}, func(sent bool, err error) {
		t.leavePlace(firstGrantWaits, b.name, began, sent && isTimeout(err))
	})
	mu.Lock()
	defer mu.Unlock()
	gone = true
	if err != nil && granted {
		t.relinquish()
	}
	return r.answer, r.sent, err
}

// takeUnlocked acquires by statements that wait for nobody.
func (t *table) takeUnlocked(ctx context.Context, conn *sqlx.Conn, b bid) (answer int64, sent time.Time, err error) {
	forMe, unlisted := t.query(sqlForMe, "r", "p."), t.query(sqlUnlisted, "r", "l.")
	if b.from != "" {
		forMe, unlisted = "p.owner = "+literal(b.from), "l.waiters"
	}
	forMe = "(" + forMe + " OR p.owner = " + literal(b.owner) + ")"
	answer, sent, err = t.ask(ctx, conn, command{text: func() string {
		return t.query(sqlTakeUnlocked, "name", literal(b.name), "owner", literal(b.owner), "label", t.label, "lease", micros(b.lease),
			"forMe", forMe, "unlisted", unlisted)
	}})
	if err != nil || answer != 0 {
		return answer, sent, err
	}
	if b.from != "" {
		return 0, sent, notSent{errRowLocked} // or taken away: without a place, that is not known
	}
	var why struct {
		Answer                   int64
		Autocommit, Mine, Listed bool
	}
	t.statements.Add(1)
	err = conn.GetContext(ctx, &why, t.query(sqlWhyNot, "name", literal(b.name)))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return absent, sent, nil
	case err != nil:
		return 0, sent, err
	case !why.Autocommit:
		return 0, sent, nil
	case why.Mine:
		return locked, sent, nil
	case b.list != 0 && !why.Listed:
		_, _, err = t.ask(ctx, conn, command{text: t.bidding(b, sqlEnlist, "")})
	}
	return why.Answer, sent, err
}

func (t *table) probe(ctx context.Context, c claim) (state rowState, err error) {
	var found struct{ Held, Unlocked bool }
	err = t.onSpare(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(1)
		return conn.GetContext(ctx, &found, t.query(sqlProbe, "name", literal(c.name), "owner", literal(c.owner)))
	})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return rowHeld, nil // a first grant waits for nothing but others: a Purge, another first grant
	case err != nil:
		return rowFree, err
	case found.Held && !found.Unlocked:
		return rowHeldLocked, nil
	case found.Held:
		return rowHeld, nil
	case !found.Unlocked:
		return rowLocked, nil
	}
	return rowFree, nil
}

// reserved is the answer of a row that nobody holds but which is kept for
// another waiter.
const reserved = -1 << 62

// locked is the answer of a row that nobody holds but which a transaction has
// locked.
const locked = reserved + 1

// absent is the answer where there is no row.
const absent = reserved + 2

var (
	errAutocommit = errors.New("this session has autocommit off, so that a lock would not be visible to others: set autocommit=1 in the DSN")
	errDemoted    = errors.New("the server is read-only")
	errLeftOpen   = errors.New("the application left a transaction open in this connection of its pool, so that a lock would not be visible to others and would be gone with a rollback: begin transactions with DB.BeginTx")
	errTooOld     = errors.New("requires MySQL 8.0 or MariaDB 10.6, or later")
	errFixedClock = errors.New("this session has a fixed timestamp, so that leases would be judged by a standing clock: remove timestamp from the DSN")
)

// prepare looks once at a session of the pool, and refuses those in which the
// statements would be wrong.
func (t *table) prepare(ctx context.Context, conn *sqlx.Conn) error {
	if !t.trusted.Load() {
		type session struct {
			Autocommit, Chained, Wide bool
			Instant, Version          string
		}
		var first, second session
		for _, s := range []*session{&first, &second} {
			t.statements.Add(1)
			if err := conn.GetContext(ctx, s, sqlSession); err != nil {
				return notSent{err}
			}
		}
		switch {
		case !first.Autocommit:
			return errAutocommit
		case first.Instant == second.Instant:
			return errFixedClock
		case tooOld(first.Version):
			return fmt.Errorf("%w; the server is %q", errTooOld, first.Version)
		}
		t.chained.Store(first.Chained)
		t.wide.Store(first.Wide)
		t.trusted.Store(true)
	}
	if t.chained.Load() {
		t.statements.Add(1)
		if _, err := conn.ExecContext(ctx, sqlSettle); err != nil {
			return notSent{err}
		}
	} else if inTransaction(conn) {
		// Or it has ended with an error, which does not carry the flag.
		t.statements.Add(1)
		if _, err := conn.ExecContext(ctx, "DO 0"); err != nil {
			return notSent{err}
		}
		switch serverStatus(conn) & (serverInTransaction | serverAutocommit) {
		case serverInTransaction | serverAutocommit:
			return notSent{errLeftOpen}
		case serverInTransaction:
			return notSent{errAutocommit}
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

// A command is a statement that is answered without rows.
type command struct {
	text  func() string
	often string // the same with arguments, to be prepared; "" if it is not asked often
	args  []any
}

func (t *table) command(statement string, pairs ...string) command {
	return command{text: func() string { return t.query(statement, pairs...) }}
}

func (t *table) exec(ctx context.Context, conn *sqlx.Conn, c command) (sql.Result, error) {
	t.statements.Add(1)
	if c.often != "" && !t.wide.Load() {
		if res, ok, err := t.prepared.exec(ctx, conn, c.often, c.args); ok {
			return res, err
		}
	}
	return conn.ExecContext(ctx, c.text())
}

// ask executes a command and returns what its LAST_INSERT_ID carried.
func (t *table) ask(ctx context.Context, conn *sqlx.Conn, c command) (answer int64, sent time.Time, err error) {
	sent = time.Now()
	res, err := t.exec(ctx, conn, c)
	if err != nil {
		return 0, sent, err
	}
	answer, err = res.LastInsertId()
	return answer, sent, err
}

func (t *table) extend(ctx context.Context, c claim, lease time.Duration, holds int) (mine bool, sent time.Time, err error) {
	type answer struct {
		mine bool
		sent time.Time
	}
	if t.short() || !t.rowWaits.enter(holdWaits, c.name, t.holdPlaces()) {
		if n, sent, err := t.renew(ctx, []claim{c}, lease, holds); n > 0 || err != nil {
			return n > 0, sent, err
		}
		if !t.rowWaits.enter(holdWaits, c.name, t.holdPlaces()) {
			return false, sent, notSent{errRowLocked}
		}
	}
	assign := "holds" // as it is
	if holds > 0 {
		assign = strconv.Itoa(holds)
	}
	cmd := t.command(sqlExtend, "name", literal(c.name), "owner", literal(c.owner), "lease", micros(lease), "holds", assign)
	a, err := inPlace(ctx, t, c, func(ctx context.Context, conn *sqlx.Conn) (answer, error) {
		told, sent, err := t.ask(ctx, conn, cmd)
		return answer{told != 0, sent}, err
	})
	return a.mine, a.sent, err
}

// holdPlaces is how many statements that renew, extend or release may wait in
// the server for locked rows. Each has a connection of the pool meanwhile.
func (t *table) holdPlaces() int {
	const most = 4
	limit := t.db.Stats().MaxOpenConnections
	if limit == 0 {
		return most
	}
	return max(1, min(limit/2, most))
}

// lockWaitLimit is when a statement that waits for a row must have been ended by
// the server: innodb_lock_wait_timeout is 50 s by default. A connection without an
// answer by then is dead.
const lockWaitLimit = 55 * time.Second

// A rowWait is a statement that may wait in the server for a locked row.
type rowWait struct {
	since time.Time
	held  claim  // for whose row it waits; zero if it is to acquire
	end   func() // gives up what it occupies here: for a statement whose row is not locked, or does not matter any more
}

// inPlace runs a statement that may wait in the server for the row of a claim, for
// which the caller has a place in rowWaits. The end of ctx ends the call, but not
// a statement that was sent: cut off, it would go on to wait, beside the one that
// replaces it.
func inPlace[T any](ctx context.Context, t *table, c claim, fn func(context.Context, *sqlx.Conn) (T, error)) (T, error) {
	own, cancel := context.WithTimeout(t.lifetime, lockWaitLimit)
	began := time.Now()
	over := false // guarded by mu: the row was found unlocked, or another's
	t.mu.Lock()
	t.waiting[c.name] = rowWait{began, c, func() { over = true; cancel() }}
	t.mu.Unlock()
	return detach(ctx, t, own, cancel, t.sole() && t.short(), fn, func(sent bool, err error) {
		t.mu.Lock()
		delete(t.waiting, c.name)
		left := sent && isTimeout(err) && !over
		t.mu.Unlock()
		t.leavePlace(holdWaits, c.name, began, left)
	})
}

// leavePlace gives up the place of a statement that has ended. If it was cut off, as
// in a pool of one, it may go on in the server for what is left of its time.
func (t *table) leavePlace(class waitClass, name string, began time.Time, cutOff bool) {
	if rest := lockWaitLimit - time.Since(began); cutOff && t.lifetime.Err() == nil && rest > 0 {
		time.AfterFunc(rest, func() { t.rowWaits.leave(class, name) })
	} else {
		t.rowWaits.leave(class, name)
	}
}

func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// A leftWaiting is the error of a statement that was cut off when its time was
// over, and may go on to wait in the server for the row of the claim.
type leftWaiting struct {
	error
	claim claim
	class waitClass
}

func (e *leftWaiting) Unwrap() error { return e.error }

// keepWaiting keeps a connection from the pool, and the place of its statement,
// while the statement that was cut off on it may wait in the server: so the server
// has no more connections than the pool allows.
func (t *table) keepWaiting(conn *sqlx.Conn, left *leftWaiting) {
	name, since := left.claim.name, time.Now()
	var once sync.Once
	end := func() {
		once.Do(func() {
			conn.Close()
			t.mu.Lock()
			delete(t.waiting, name)
			t.mu.Unlock()
			t.rowWaits.leave(left.class, name)
		})
	}
	if t.lifetime.Err() != nil {
		end()
		return
	}
	var timer *time.Timer
	t.mu.Lock()
	defer t.mu.Unlock()
	timer = time.AfterFunc(probeInterval, func() {
		ctx, cancel := context.WithTimeout(t.lifetime, probeInterval)
		defer cancel()
		state, err := t.probe(ctx, left.claim)
		if t.lifetime.Err() == nil && (err != nil || state >= rowLocked) && time.Since(since) < lockWaitLimit {
			timer.Reset(probeInterval)
		} else {
			end()
		}
	})
	held := claim{}
	if left.class == holdWaits {
		held = left.claim
	}
	t.waiting[name] = rowWait{since, held, func() { timer.Stop(); go end() }}
}

// waitOver ends what still waits for rows although another statement met them
// unlocked: the connections are cut or dead. If the rows are lost, only what waits
// for those claims ends; a statement that is to acquire waits for whoever has the row.
func (t *table) waitOver(cs []claim, lost bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 {
		return
	}
	for _, c := range cs {
		if w, ok := t.waiting[c.name]; ok && time.Since(w.since) > time.Second && (!lost || w.held == c) {
			w.end()
		}
	}
}

// detach runs a statement on a goroutine of the table, with the context own, which
// cancel ends. The end of ctx ends the call, and the statement too if it was not
// sent yet. done is called at the statement's end.
func detach[T any](ctx context.Context, t *table, own context.Context, cancel context.CancelFunc, spare bool,
	fn func(context.Context, *sqlx.Conn) (T, error), done func(sent bool, err error),
) (result T, err error) {
	type answer struct {
		result T
		err    error
	}
	answers := make(chan answer, 1)
	var mu sync.Mutex // guards sent
	sent := false
	t.detached.Go(func() {
		defer cancel()
		a := answer{err: errPanic}
		defer func() {
			done(sent, a.err)
			answers <- a
		}()
		a.err = t.run(own, spare, func(ctx context.Context, conn *sqlx.Conn) (err error) {
			mu.Lock()
			err = own.Err() // the call may have ended since the connection was had
			sent = sent || err == nil
			mu.Unlock()
			if err == nil {
				a.result, err = fn(ctx, conn)
			}
			return err
		})
	})
	select {
	case a := <-answers:
		return a.result, a.err
	case <-ctx.Done():
	}
	mu.Lock()
	leave := sent
	if !leave {
		cancel()
	}
	mu.Unlock()
	if leave {
		return result, ctx.Err()
	}
	a := <-answers
	return a.result, a.err
}

func (t *table) renew(ctx context.Context, cs []claim, lease time.Duration, holds int) (renewed int, sent time.Time, err error) {
	assign := ""
	if holds > 0 {
		assign = "l.holds = " + strconv.Itoa(holds) + ", "
	}
	n, sent, err := t.change(ctx, true, t.command(sqlRenew, append(lists(cs), "lease", micros(lease), "holds", assign)...))
	if err == nil && n == int64(len(cs)) {
		t.waitOver(cs, false)
	}
	return int(n), sent, err
}

func (t *table) release(ctx context.Context, c claim) (freed bool, next process, err error) {
	// Renewals need the only connection of a pool, so it must not wait for a locked row.
	only := t.db.Stats().MaxOpenConnections == 1
	if only || t.short() || !t.rowWaits.enter(holdWaits, c.name, t.holdPlaces()) {
		if n, next, err := t.releaseAll(ctx, []claim{c}); n > 0 || err != nil {
			return n > 0, next, err
		}
		if only || !t.rowWaits.enter(holdWaits, c.name, t.holdPlaces()) {
			return false, 0, notSent{errRowLocked}
		}
	}
	// On the caller's goroutine: the switches to another and back would cost a tenth
	// of an uncontended acquire and release.
	kept := false
	var n int64
	err = t.run(ctx, t.sole(), func(ctx context.Context, conn *sqlx.Conn) (err error) {
		n, next, err = t.freeOn(ctx, conn, t.releasing(c))
		if kept = err != nil && ctx.Err() != nil && !errors.Is(err, driver.ErrBadConn); kept {
			err = &leftWaiting{err, c, holdWaits}
		}
		return err
	})
	if !kept {
		t.rowWaits.leave(holdWaits, c.name)
	}
	return n > 0, next, err
}

func (t *table) releasing(c claim) command {
	return command{
		text: func() string {
			return t.query(sqlRelease, "name", literal(c.name), "owner", literal(c.owner), "released", literal(released(c.owner)))
		},
		often: t.giveUp, args: []any{hex.EncodeToString([]byte(c.name)), c.owner, released(c.owner)},
	}
}

// released is what sqlFree makes of an owner id.
func released(owner string) string { return "-" + owner[1:] }

func (t *table) releaseAll(ctx context.Context, cs []claim) (freed int64, next process, err error) {
	owners := make([]string, 0, 2*len(cs))
	for _, c := range cs {
		owners = append(owners, c.owner, released(c.owner))
	}
	freed, next, err = t.free(ctx, true, t.command(sqlReleaseAll,
		"names", literals(namesOf(cs)), "owners", literals(owners), "count", strconv.Itoa(len(cs)), "r", "l."))
	if freed == int64(len(cs)) {
		t.waitOver(cs, false)
	}
	return freed, next, err
}

func (t *table) strike(ctx context.Context, names []string, p process) (heir process, all bool, err error) {
	struck, heir, err := t.free(ctx, true, t.command(sqlStrike,
		"names", literals(names), "count", strconv.Itoa(len(names)), "process", p.literal(), "mute", p.silent().literal(), "r", "l."))
	return heir, struck == int64(len(names)), err
}

func lists(cs []claim) []string {
	owners := make([]string, len(cs))
	for i, c := range cs {
		owners[i] = c.owner
	}
	return []string{"names", literals(namesOf(cs)), "owners", literals(owners), "count", strconv.Itoa(len(cs))}
}

// change runs a statement on behalf of what is held, and returns how many rows it
// matched. They are counted while the connection is ours: a Result waits for whatever
// statement runs on it later.
func (t *table) change(ctx context.Context, spare bool, c command) (rows int64, sent time.Time, err error) {
	err = t.run(ctx, spare, func(ctx context.Context, conn *sqlx.Conn) error {
		sent = time.Now()
		res, err := t.exec(ctx, conn, c)
		if err == nil {
			rows, err = res.RowsAffected()
		}
		return err
	})
	return rows, sent, err
}

// free is change for statements that may free rows for which others wait.
func (t *table) free(ctx context.Context, spare bool, c command) (freed int64, heir process, err error) {
	err = t.run(ctx, spare, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		freed, heir, err = t.freeOn(ctx, conn, c)
		return err
	})
	return freed, heir, err
}

func (t *table) freeOn(ctx context.Context, conn *sqlx.Conn, c command) (freed int64, next process, err error) {
	res, err := t.exec(ctx, conn, c)
	if err != nil {
		return 0, 0, err
	}
	first, err := res.LastInsertId()
	if err != nil {
		return 0, 0, err
	}
	freed, err = res.RowsAffected()
	return freed, process(first), err
}

func (t *table) look(ctx context.Context, names []string) (rows map[string]row, sent time.Time, err error) {
	err = t.onSpare(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		rows, sent, err = t.lookOn(ctx, conn, names)
		return err
	})
	return rows, sent, err
}

func (t *table) lookOn(ctx context.Context, conn *sqlx.Conn, names []string) (rows map[string]row, sent time.Time, err error) {
	var found []struct {
		Name, Owner string
		Micros      int64
		Heir        process
		Listed      bool
		Named       bool
		Demoted     bool
	}
	t.statements.Add(1)
	sent = time.Now()
	err = conn.SelectContext(ctx, &found, t.query(sqlLook, "names", literals(names), "count", strconv.Itoa(len(names))))
	if err == nil && len(found) > 0 && found[0].Demoted {
		err = errDemoted
	}
	rows = make(map[string]row, len(found))
	for _, f := range found {
		rows[f.Name] = row{f.Owner, duration(f.Micros), f.Heir, f.Listed, f.Named}
	}
	return rows, sent, err
}

func (t *table) owned(ctx context.Context, cs []claim) (mine []claim, err error) {
	err = t.onSpare(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(1)
		_, err := conn.ExecContext(ctx, sqlReadCommitted)
		if err != nil && number(err) != 1568 { // ER_CANT_CHANGE_TX_CHARACTERISTICS: the application left a transaction open
			return err
		}
		rows, _, err := t.lookOn(ctx, conn, namesOf(cs))
		if err != nil {
			conn.Raw(func(any) error { return driver.ErrBadConn }) // the next transaction must not have that level
			return err
		}
		mine = slices.DeleteFunc(slices.Clone(cs), func(c claim) bool { return rows[c.name].owner != c.owner })
		return nil
	})
	if err == nil && len(mine) < len(cs) {
		t.waitOver(slices.DeleteFunc(slices.Clone(cs), func(c claim) bool { return slices.Contains(mine, c) }), true)
	}
	return mine, err
}

func (t *table) confirm(ctx context.Context, c claim) (mine bool, sent time.Time, err error) {
	type answer struct {
		mine bool
		sent time.Time
	}
	own, cancel := brief(t.lifetime, min(t.alone, 5*time.Second))
	a, err := detach(ctx, t, own, cancel, true, func(ctx context.Context, conn *sqlx.Conn) (answer, error) {
		rows, sent, err := t.lookOn(ctx, conn, []string{c.name})
		return answer{rows[c.name].owner == c.owner, sent}, err
	}, func(bool, error) {})
	return a.mine, a.sent, err
}

const (
	// A pool of fewer connections has none to spare for listening,
	listenPool = 4
	// and one that has so few left may soon need it for something else.
	listenBound = 500 * time.Millisecond
)

var (
	errSmallPool = errors.New("the pool is too small to spare a connection for listening")
	errUsedUp    = errors.New("the pool has no connection to spare for listening at the moment")
	errBellTaken = errors.New("the server did not grant the name to listen under")
)

func (t *table) listen(ctx context.Context, names []string, d time.Duration) (h heard, err error) {
	stats := t.db.Stats()
	if stats.MaxOpenConnections > 0 && stats.MaxOpenConnections-stats.InUse < listenPool {
		d = min(d, listenBound)
	}
	ctx, cancel := context.WithTimeout(ctx, d+time.Second)
	defer cancel()
	switch {
	case 0 < stats.MaxOpenConnections && stats.MaxOpenConnections < listenPool,
		t.usedUp() && t.ear != nil && stats.WaitCount > t.waits: // somebody waits for a connection while this one listens
		return h, errSmallPool
	case t.usedUp() && t.ear == nil:
		return h, errUsedUp
	}
	t.waits = stats.WaitCount
	var answer struct {
		Hit     sql.NullString
		Rung    bool
		Demoted bool
	}
	fresh := t.ear == nil
	if fresh {
		err = t.prickUp(ctx)
	} else {
		err = t.prepare(ctx, t.ear)
	}
	if err == nil {
		t.statements.Add(1)
		err = t.ear.GetContext(ctx, &answer, t.query(sqlListen, "names", literals(names), "count", strconv.Itoa(len(names)),
			"seconds", strconv.FormatFloat(d.Seconds(), 'f', 6, 64)))
	}
	switch {
	case number(err) == 1317: // interrupted by KILL QUERY
		if fresh {
			t.hush() // the bell may not have been granted
		}
		return heard{rung: true}, nil
	case err != nil:
		return h, told(err)
	case answer.Demoted:
		return h, errDemoted
	case answer.Hit.Valid:
		return heard{name: answer.Hit.String, missing: answer.Hit.String == ""}, nil
	}
	return heard{rung: answer.Rung}, nil
}

// prickUp takes a connection to listen with.
func (t *table) prickUp(ctx context.Context) error {
	conn, err := t.db.Connx(ctx)
	if err != nil {
		return err
	}
	if err := t.prepare(ctx, conn); err != nil {
		conn.Close()
		return err
	}
	t.ear = conn
	var granted sql.NullBool
	t.statements.Add(2)
	conn.ExecContext(ctx, sqlNotSlow) // before a ring could hit it; where it is refused, the log has an entry more
	err = conn.GetContext(ctx, &granted, t.query(sqlBell, "id", t.me.String()))
	if err == nil && !granted.Bool {
		err = errBellTaken
	}
	return err
}

// hush closes the connection that listened. In the pool, another's statement on
// it could be hit by a ring.
func (t *table) hush() {
	if t.ear != nil {
		t.ear.Raw(func(any) error { return driver.ErrBadConn })
		t.ear.Close()
		t.ear = nil
	}
}

func (t *table) ring(ctx context.Context, p process) (alive bool, err error) {
	_, _, err = t.change(ctx, true, t.command(sqlRing, "id", p.String()))
	if number(err) == 1094 { // ER_NO_SUCH_THREAD
		return false, nil
	}
	return true, err
}

func (t *table) relinquish() {
	t.mu.Lock()
	var conn *sqlx.Conn
	if t.terms--; t.terms == 0 {
		conn, t.spare = t.spare, nil
	}
	t.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// close leaves nothing behind in the sessions of the pool.
func (t *table) close() {
	t.end()
	t.mu.Lock()
	for _, w := range t.waiting {
		w.end()
	}
	t.mu.Unlock()
	t.detached.Wait()
	t.prepared.close()
}

// on runs fn on one connection of the pool.
func (t *table) on(ctx context.Context, fn func(context.Context, *sqlx.Conn) error) error {
	return t.run(ctx, false, fn)
}

// onSpare prefers the connection that was kept for what is held. Statements that
// wait for a row which somebody has locked must not have it.
func (t *table) onSpare(ctx context.Context, fn func(context.Context, *sqlx.Conn) error) error {
	return t.run(ctx, true, fn)
}

// run replaces a connection that was found dead before anything was sent, or on
// which a demoted primary answered.
func (t *table) run(ctx context.Context, spare bool, fn func(context.Context, *sqlx.Conn) error) error {
	if t.db.Stats().MaxOpenConnections == 1 && t.holds() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.alone)
		defer cancel()
	}
	for try := 1; ; try++ {
		usedUp := t.usedUp()
		conn, err := t.borrowOther(ctx, spare && try == 1)
		switch {
		case err == nil:
		case isTimeout(err) && usedUp:
			return notSent{poolUsedUp{err}}
		default:
			return told(notSent{err})
		}
		err = t.use(ctx, conn, spare, fn)
		switch {
		case err == errDemoted && try < 3:
		case !errors.Is(err, driver.ErrBadConn) && number(err) != 4031: // ER_CLIENT_INTERACTION_TIMEOUT
			return told(err)
		case try == 3:
			return told(notSent{err})
		}
	}
}

// use runs fn on a connection, and gives that back.
func (t *table) use(ctx context.Context, conn *sqlx.Conn, spare bool, fn func(context.Context, *sqlx.Conn) error) (err error) {
	long, cancel := t.patient(ctx)
	defer cancel()
	err = errPanic
	defer func() { t.giveBack(conn, err, spare) }()
	if broken := t.prepare(long, conn); broken != nil {
		return broken
	}
	err = fn(long, conn)
	left := (*leftWaiting)(nil)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil && !errors.As(err, &left) {
		err = ctx.Err() // not how patient ends it
	}
	return err
}

// errPanic stands for the outcome of a statement in which the driver panicked, from
// which the application may recover.
var errPanic = errors.New("the driver panicked")

// brief returns a context for a statement that is ended after the given time
// only for another connection to be tried.
func brief(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithValue(ctx, briefKey{}, ctx), bound)
}

type briefKey struct{}

// patient makes such a context last while there is no other connection: a
// statement that is cut off takes its connection with it, and an application that
// has used up its pool would get the place. It ends as soon as the pool has a
// connection to spare.
func (t *table) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	outer, ok := ctx.Value(briefKey{}).(context.Context)
	end, bounded := ctx.Deadline()
	if !ok || !bounded {
		return ctx, func() {}
	}
	long, cancel := context.WithTimeout(outer, max(3*t.alone, time.Until(end)))
	var mu sync.Mutex // guards timer
	var timer *time.Timer
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(time.Until(end), func() {
		mu.Lock()
		defer mu.Unlock()
		if long.Err() == nil && t.usedUp() {
			timer.Reset(poolCheck)
		} else {
			cancel()
		}
	})
	return long, func() {
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
		cancel()
	}
}

// poolCheck is how often a statement that goes on beyond its time, because the
// pool is used up, looks whether it still is.
const poolCheck = 10 * time.Millisecond

// borrow takes the spare connection, if the statement may have it, or one of the
// pool: whichever comes free first.
func (t *table) borrow(ctx context.Context, spare bool) (*sqlx.Conn, error) {
	if !spare {
		return t.db.Connx(ctx)
	}
	if conn := t.takeSpare(); conn != nil {
		return conn, nil
	}
	if !t.usedUp() {
		return t.db.Connx(ctx)
	}
	type answer struct {
		conn *sqlx.Conn
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pooled := make(chan answer, 1)
	go func() {
		conn, err := t.db.Connx(ctx)
		pooled <- answer{conn, err}
	}()
	for {
		select {
		case a := <-pooled:
			return a.conn, a.err
		case <-t.returned:
		}
		if conn := t.takeSpare(); conn != nil {
			cancel()
			if a := <-pooled; a.err == nil {
				a.conn.Close()
			}
			return conn, nil
		}
	}
}

// takeSpare returns the spare connection, nil if there is none at the moment.
func (t *table) takeSpare() *sqlx.Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	conn := t.spare
	t.spare = nil
	return conn
}

// borrowOther passes over a connection in which the application left a transaction
// open, if the pool has another: it would be the first to be had again.
func (t *table) borrowOther(ctx context.Context, spare bool) (*sqlx.Conn, error) {
	conn, err := t.borrow(ctx, spare)
	if err != nil || t.chained.Load() || !inTransaction(conn) || t.usedUp() {
		return conn, err
	}
	defer conn.Close() // when the other was had
	return t.borrow(ctx, false)
}

func (t *table) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.terms > 0
}

// sole reports whether one lock is held: no other needs the spare connection.
func (t *table) sole() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.terms == 1
}

// short tells whether the pool is used up, so that a statement would wait for
// the spare connection or for nothing.
func (t *table) short() bool {
	t.mu.Lock()
	spare := t.spare != nil
	t.mu.Unlock()
	return spare && t.usedUp()
}

// usedUp tells whether the pool has no connection left.
func (t *table) usedUp() bool {
	s := t.db.Stats()
	return s.MaxOpenConnections > 0 && s.InUse >= s.MaxOpenConnections
}

// giveBack returns a connection to the pool, or keeps it while anything is held:
// an application that uses up its pool, or the server's connections, must not
// starve the renewals. What is held for a moment in an unlimited pool keeps none.
// One that leads to a demoted primary is closed, as it is by rejectReadOnly: the
// next one may lead to the new primary. So is one that the driver left midway.
func (t *table) giveBack(conn *sqlx.Conn, err error, renewed bool) {
	if left := (*leftWaiting)(nil); errors.As(err, &left) {
		t.keepWaiting(conn, left)
		return
	}
	limit := t.db.Stats().MaxOpenConnections
	if demoted(err) || err == errPanic {
		conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	t.mu.Lock()
	keep := answered(err) && !demoted(err) && t.terms > 0 && t.spare == nil && (limit > 1 || limit == 0 && renewed)
	if keep {
		t.spare = conn
		notify(t.returned)
	}
	t.mu.Unlock()
	if !keep {
		conn.Close() // back to the pool
	}
}

// number is the server's number of an error, 0 if it is not the server's.
func number(err error) uint16 {
	if refused, ok := errors.AsType[*mysql.MySQLError](err); ok {
		return refused.Number
	}
	return 0
}

// answered tells whether the server has answered and goes on to serve the
// connection.
func answered(err error) bool { return err == nil || number(err) != 0 && !ended(err) }

// ended reports whether the connection on which the statement ran has ended. A
// proxy puts its own connection's end into a server's answer: 2000 to 2999 are the
// numbers of the client library, which no server uses
// (https://dev.mysql.com/doc/mysql-errors/8.4/en/client-error-reference.html).
func ended(err error) bool {
	switch n := number(err); n {
	case 1053, 1927, 1152, 1184, 3169, 4031: // shutdown, killed, aborted, killed (X plugin), idle for too long
		return true
	default:
		return 2000 <= n && n < 3000
	}
}

// demoted reports whether the server does not write: of its own, for everybody, or
// because it serves nobody (a member that has left its group).
func demoted(err error) bool {
	n := number(err)
	return err == errDemoted || n == 1290 || n == 1836 || n == 3032 // option prevents the statement, read-only mode, offline mode
}

// notSent marks an error that came before the statement could reach the server.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

// poolUsedUp marks the end of a wait for a connection while the pool could open no
// more. Without that, a connection was being opened, and took too long.
type poolUsedUp struct{ error }

func (e poolUsedUp) Unwrap() error { return e.error }

// told puts the class of a server's error into words. The numbers are those of
// https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html.
func told(err error) error {
	switch number(err) {
	case 1146: // ER_NO_SUCH_TABLE
		return fmt.Errorf("%w: call Locker.CreateTable or apply schema.sql: %w", ErrNoTable, err)
	case 1290, 1792, 1836: // read-only server, transaction, mode
		return fmt.Errorf("the server or the session is read-only (a replica or a demoted primary? rejectReadOnly=true in the DSN makes the pool reconnect): %w", err)
	case 1045, 1698: // access denied, with or without a password
		return fmt.Errorf("the server refuses the account that the DSN names: %w", err)
	case 1044, 1142, 1143: // access to the database, table, column denied
		return fmt.Errorf("a privilege is missing (SELECT, INSERT and UPDATE on the table; DELETE for Purge, CREATE for CreateTable): %w", err)
	}
	return err
}

// transient tells whether the same statement may succeed if it is sent again.
func transient(err error) bool {
	switch number(err) {
	case 0:
		// Not the server's word: the connection broke, could not be had, or
		// did not answer in time.
		return !final(err)
	case 1317, 1907, 1969, 3024, // interrupted by KILL QUERY or a time limit; 1907 by ProxySQL
		1040, 1203, 1226, // too many connections: to the server, of a user, of this account
		1047, 1180, // a Galera node without quorum; found so while it committed
		3032, 3100, 3168, // offline mode; a group that could not decide on the commit; a server that is starting
		9001, 9002, 9004: // ProxySQL has no backend to send the statement to
		return true
	}
	return contended(err) || ended(err)
}

// contended reports whether the statement met others at the row: deadlock, lock
// wait timeout, changed since the snapshot (MariaDB), or refused by the other
// members of a group when it committed.
func contended(err error) bool {
	if errors.Is(err, errRowLocked) {
		return true
	}
	switch number(err) {
	case 1213, 1205, 1020, 3101:
		return true
	}
	return false
}

// rejected reports whether the server's error proves that the statement changed
// nothing. A statement that did not begin, or that the server rolled back, is one.
// An interruption is none: ProxySQL reports one (1317, 1907) when it loses the
// backend that it told to stop. Nor is the end of a connection, or a connection
// that could not be had: a proxy sends a statement again whose first answer it has
// lost, and reports what befell the last try. Nor is a rollback by a group (3101):
// a member that is expelled rolls back what the others may have received.
func rejected(n uint16) bool {
	switch n {
	case 1213, 1205, 1020, 1969, 3024, // rolled back: deadlock, lock wait timeout, changed since the snapshot, time limits of the server
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

// final tells whether an error that is not the server's will be met again.
func final(err error) bool {
	return errors.Is(err, errDemoted) || errors.Is(err, errAutocommit) || errors.Is(err, errFixedClock) || errors.Is(err, errLeftOpen) || errors.Is(err, errTooOld) || errors.Is(err, mysql.ErrPktTooLarge) ||
		strings.HasSuffix(err.Error(), "sql: database is closed") // database/sql does not export it
}

// unknown tells whether a statement that failed may have been executed, or may
// yet be: then what it would have done must be undone.
func unknown(err error) bool {
	var never notSent
	switch {
	case err == nil, errors.As(err, &never):
		return false
	case number(err) != 0:
		return !rejected(number(err))
	}
	return !final(err)
}

// What follows is for people, not for terms.

func (t *table) createTable(ctx context.Context) error {
	const head = "CREATE TABLE IF NOT EXISTS "
	schema := strings.Replace(Schema, head+"mysqllock", head+t.name, 1)
	return t.on(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		if err := t.repeat(ctx, conn, schema); err != nil {
			return err
		}
		return t.repeat(ctx, conn, t.query(sqlMark))
	})
}

// repeat runs a statement until it is not the victim of a deadlock.
func (t *table) repeat(ctx context.Context, conn *sqlx.Conn, query string) error {
	for try := 1; ; try++ {
		t.statements.Add(1)
		_, err := conn.ExecContext(ctx, query)
		if !contended(err) || try == 10 {
			return err
		}
	}
}

func (t *table) infos(ctx context.Context, query string) ([]Info, error) {
	var found []struct {
		Name, Owner, Holder       string
		Holds                     int
		Token                     uint64
		Acquired, Expires, Micros int64
		Waiters                   int
	}
	err := t.on(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(1)
		return conn.SelectContext(ctx, &found, query)
	})
	infos := make([]Info, 0, len(found))
	for _, f := range found {
		info := Info{Name: f.Name, Token: f.Token, Waiters: f.Waiters}
		if f.Micros > 0 {
			info.Held = true
			info.Holder, info.Owner, info.Holds = f.Holder, f.Owner, f.Holds
			info.AcquiredAt = time.UnixMicro(f.Acquired).UTC()
			info.ExpiresAt = time.UnixMicro(f.Expires).UTC()
			info.ExpiresIn = duration(f.Micros)
		}
		infos = append(infos, info)
	}
	return infos, err
}

func (t *table) inspect(ctx context.Context, name string) (Info, error) {
	infos, err := t.infos(ctx, t.query(sqlInspect, "name", literal(name)))
	if err != nil || len(infos) == 0 {
		return Info{Name: name}, err
	}
	return infos[0], nil
}

func (t *table) list(ctx context.Context) ([]Info, error) { return t.infos(ctx, t.query(sqlList)) }

// force frees the row whoever holds it and returns the owner it had, "" if none. It
// waits, until ctx ends, for whoever has the row locked.
func (t *table) force(ctx context.Context, name string) (owner string, heir process, err error) {
	for pause := time.Millisecond; ; {
		owner, heir, err = t.forceOnce(ctx, name)
		switch {
		case err == nil:
			return owner, heir, nil
		case ctx.Err() != nil:
			return "", 0, fmt.Errorf("%w: %w", context.Cause(ctx), err)
		case err == errMoved:
			// Or, under READ UNCOMMITTED, the next owner waits for the same guard.
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, 100*time.Millisecond)
		case err == errGuarded:
		case number(err) == 1969, number(err) == 3024: // the session's time limit, on a busy server
		default:
			return "", 0, err
		}
	}
}

func (t *table) forceOnce(ctx context.Context, name string) (owner string, heir process, err error) {
	// Not in the transaction, where SERIALIZABLE would lock the row.
	var holder struct {
		Owner string
		Token uint64
	}
	pairs := []string{"name", literal(name)}
	err = t.on(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(1)
		return conn.GetContext(ctx, &holder, t.query(sqlHolder, pairs...))
	})
	if errors.Is(err, sql.ErrNoRows) {
		return "", 0, nil
	} else if err != nil {
		return "", 0, err
	}
	pairs = append(pairs, "token", strconv.FormatUint(holder.Token, 10))
	err = t.inTransaction(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(2)
		var seized uint64
		err := conn.GetContext(ctx, &seized, t.query(sqlSeize, pairs...))
		switch number(err) {
		case 1205, 1969, 3024: // lock wait, or the statement, took too long
			return errGuarded
		}
		if errors.Is(err, sql.ErrNoRows) {
			return errMoved
		} else if err != nil {
			return err
		}
		res, err := conn.ExecContext(ctx, t.query(sqlForce, pairs...))
		if err != nil {
			return err
		}
		if n, err := res.RowsAffected(); err != nil || n == 0 {
			return err // it expired meanwhile
		}
		owner = holder.Owner
		first, err := res.LastInsertId()
		heir = process(first)
		return err
	})
	return owner, heir, err
}

var (
	errMoved   = errors.New("somebody else has it by now")
	errGuarded = errors.New("a transaction has the lock under Guard, or its row locked")
)

// purge deletes idle rows in batches, each in one transaction that first raises
// the high-water row above every token it deletes.
func (t *table) purge(ctx context.Context, idle time.Duration) (deleted int64, err error) {
	pause, err := t.mark(ctx)
	if err != nil {
		return 0, err
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	for after := ""; ; {
		var found []idleRow
		err = t.on(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			t.statements.Add(1)
			return conn.SelectContext(ctx, &found, t.query(sqlIdleNames,
				"name", literal(after), "idle", micros(idle), "count", strconv.Itoa(batchSize)))
		})
		if err != nil || len(found) == 0 {
			return deleted, err
		}
		after = found[len(found)-1].Name
		for try := 1; ; try++ {
			n, err := t.deleteIdle(ctx, found, idle)
			if err == nil {
				deleted += n
				break
			}
			if !contended(err) || try == 10 {
				return deleted, err
			}
		}
	}
}

type idleRow struct {
	Name  string
	Token uint64
}

// mark makes sure of the high-water row. Where it was missing, a first grant
// that did not see it may be under way: pause is long enough for that to end.
func (t *table) mark(ctx context.Context) (pause time.Duration, err error) {
	err = t.on(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var n int
		t.statements.Add(2)
		if err := conn.GetContext(ctx, &n, t.query(sqlMarked)); err != nil || n > 0 {
			return err
		}
		pause = time.Second
		return t.repeat(ctx, conn, t.query(sqlMark))
	})
	return pause, err
}

func (t *table) deleteIdle(ctx context.Context, found []idleRow, idle time.Duration) (deleted int64, err error) {
	tokens := make([]string, len(found))
	for i, f := range found {
		tokens[i] = strconv.FormatUint(f.Token, 10)
	}
	err = t.inTransaction(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(4)
		var mark uint64
		if err := conn.GetContext(ctx, &mark, t.query(sqlHighWater)); err != nil {
			return err
		}
		var locked []idleRow
		if err := conn.SelectContext(ctx, &locked, t.query(sqlIdleLock, "tokens", strings.Join(tokens, ","), "idle", micros(idle))); err != nil || len(locked) == 0 {
			return err
		}
		var names []string
		for _, f := range locked {
			names = append(names, f.Name)
			mark = max(mark, f.Token)
		}
		if _, err := conn.ExecContext(ctx, t.query(sqlRaise, "token", strconv.FormatUint(mark, 10))); err != nil {
			return err
		}
		res, err := conn.ExecContext(ctx, t.query(sqlDelete, "names", literals(names), "count", strconv.Itoa(len(names))))
		if err == nil {
			deleted, err = res.RowsAffected()
		}
		return err
	})
	return deleted, err
}

// inTransaction does not leave a transaction open in the session, whatever its
// completion_type.
func (t *table) inTransaction(ctx context.Context, fn func(context.Context, *sqlx.Conn) error) error {
	return t.on(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(2)
		if _, err := conn.ExecContext(ctx, "START TRANSACTION READ WRITE"); err != nil {
			return err
		}
		err := fn(ctx, conn)
		if err == nil {
			_, err = conn.ExecContext(ctx, sqlSettle)
		}
		if err != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			if _, failed := conn.ExecContext(ctx, "ROLLBACK AND NO CHAIN NO RELEASE"); failed != nil {
				conn.Raw(func(any) error { return driver.ErrBadConn }) // out of the pool
			}
		}
		return err
	})
}

// guard locks the index entry of the token within tx. It returns ErrLost if the
// row is not the claim's any more.
func (t *table) guard(ctx context.Context, tx Queryer, c claim, token uint64) error {
	switch tx.(type) {
	case *sql.DB, *sqlx.DB:
		return errors.New("a pool is no transaction: pass a *sql.Tx, or the *sql.Conn that it runs on")
	case *sql.Tx, *sqlx.Tx:
	default:
		if err := t.requireTransaction(ctx, tx); err != nil {
			return err
		}
	}
	lock := func(statement string) (found bool, err error) {
		t.statements.Add(1)
		err = tx.QueryRowContext(ctx, t.query(statement, "name", literal(c.name), "token", strconv.FormatUint(token, 10))).Scan(&token)
		if errors.Is(err, sql.ErrNoRows) {
			return false, nil
		}
		return err == nil, told(err)
	}
	if found, err := lock(sqlGuard); found || err != nil {
		return err
	}
	if mine, err := t.stillMine(ctx, c); err == nil && !mine {
		return ErrLost
	}
	// The transaction sees the table as it was before the grant.
	if found, err := lock(sqlGuardNow); found || err != nil {
		return err
	}
	if mine, err := t.stillMine(ctx, c); err == nil && mine {
		return errors.New("the transaction does not find the lock's row: it must run on the server of the Locker's table, and find that table under the same name")
	}
	return ErrLost
}

// stillMine looks, in a session of the pool, whether the row is the claim's.
func (t *table) stillMine(ctx context.Context, c claim) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second) // the transaction may have the last connection of the pool
	defer cancel()
	mine, err := owned(ctx, t, []claim{c})
	return len(mine) > 0, err
}

// requireTransaction returns an error if tx, of a type that is not known, has no
// open transaction: there a savepoint ends with the statement that sets it.
func (t *table) requireTransaction(ctx context.Context, tx Queryer) error {
	for _, statement := range []string{"SAVEPOINT mysqllock_guard", "RELEASE SAVEPOINT mysqllock_guard"} {
		t.statements.Add(1)
		var none any
		err := tx.QueryRowContext(ctx, statement).Scan(&none)
		if number(err) == 1305 { // ER_SP_DOES_NOT_EXIST
			return errors.New("no transaction is open: pass the *sql.Tx, or the *sql.Conn on which it was begun")
		} else if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return told(err)
		}
	}
	return nil
}

// literal writes s so that every session reads the same bytes. In quotes stand
// only bytes that no client charset (sjis and gbk eat a backslash) and no
// sql_mode (ANSI_QUOTES, NO_BACKSLASH_ESCAPES) can misread, and _binary keeps
// them from being converted to the charset of the connection; the rest is
// hexadecimal.
func literal(s string) string {
	if s == "" {
		return "x''" // not NULL, as '' is under EMPTY_STRING_IS_NULL
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte(" _.:/@=,+-", c) >= 0:
		default:
			return fmt.Sprintf("x'%x'", s)
		}
	}
	return "_binary'" + s + "'"
}

func literals(ss []string) string {
	var b strings.Builder
	for i, s := range ss {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(literal(s))
	}
	return b.String()
}

// quoteTable checks and quotes "table" or "db.table".
func quoteTable(name string) (string, error) {
	parts := strings.Split(name, ".")
	if len(parts) > 2 {
		return "", fmt.Errorf("%q has more than one dot; want table or db.table", shown(name))
	}
	for i, part := range parts {
		if part == "" || len(part) > 64 {
			return "", fmt.Errorf("%q: an identifier has 1 to 64 characters", shown(name))
		}
		for _, c := range part {
			if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '$' || c == '-') {
				return "", fmt.Errorf("%q: %q is not allowed; want letters, digits, _, $ and -", shown(name), c)
			}
		}
		parts[i] = "`" + part + "`"
	}
	return strings.Join(parts, "."), nil
}
