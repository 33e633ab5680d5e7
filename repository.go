package mysqllock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
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
	// extend prolongs one lease; it waits for the row if somebody has it locked.
	extend(ctx context.Context, c claim, lease time.Duration, holds int) (mine bool, sent time.Time, err error)
	// renew prolongs many, passing over rows that somebody has locked, and leaves
	// holds as it is if that is 0. all is false if any was passed over, gone, or
	// already promised for longer.
	renew(ctx context.Context, cs []claim, lease time.Duration, holds int) (all bool, sent time.Time, err error)
	// look reads what the rows of the names say; a name without row is missing.
	look(ctx context.Context, names []string) (rows map[string]row, sent time.Time, err error)
	// release frees the row if it is still the claim's.
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
	// strike takes a process off the lists of those who wait.
	strike(ctx context.Context, names []string, p process) (heir process, err error)
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
	sent     time.Time
}

// A row is what look sees: who has it and for how long yet (negative: expired),
// and who waits for it.
type row struct {
	owner  string
	left   time.Duration
	heir   process
	listed bool // this process waits for it, as far as the row can tell
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
	take       string // sqlTake and sqlRelease with arguments
	giveUp     string

	// Of listen and hush alone.
	ear   *sqlx.Conn // the connection that listens; nil if none does
	waits int64      // how often anybody had waited for a connection when ear was last used

	mu    sync.Mutex // guards the following
	terms int        // grants that were not relinquished
	spare *sqlx.Conn // idle connection kept from the pool while terms > 0; nil while in use
}

func newTable(db *sql.DB, name, label string, me process, lease time.Duration) (*table, error) {
	quoted, err := quoteTable(name)
	if err != nil {
		return nil, err
	}
	pool := sqlx.NewDb(db, "mysql")
	t := &table{db: pool, prepared: prepared{db: pool}, name: quoted, label: literal(label), me: me, alone: lease / 4}
	// Hexadecimal digits are the same in every charset.
	t.take = t.query(sqlTake, "owner", "?", "label", t.label, "lease", "?", "name", "UNHEX(?)")
	t.giveUp = t.query(sqlRelease, "name", "UNHEX(?)", "owner", "?")
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
	// it in time is struck off, or one who died would hold up every handoff.
	sqlUnlisted = `IF({r}waiters = x'', x'', REPLACE(REPLACE(
      IF(LEFT({r}waiters, 19) IN ({me}, {silent}), {r}waiters, SUBSTRING({r}waiters, 20)), {me}, x''), {silent}, x''))`

	// The short way, where nobody waits. Its answer is -1 if somebody does, and
	// the row is free. Without autocommit a grant would be a promise that nobody
	// else can see: there every statement matches nothing.
	sqlTake = `UPDATE {t} SET owner = {owner}, holder = {label}, holds = 1,
  token = LAST_INSERT_ID(GREATEST(token + 256, ` + sqlMicros + `)), acquired_at = ` + sqlNow + `,
  expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND
WHERE name = {name} AND @@autocommit AND IF(expires_at <= ` + sqlNow + ` AND waiters = x'', 1,
  0 * LAST_INSERT_ID(-GREATEST(1, TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, expires_at))))`

	// One owner of this process takes over from another. The token moves, so that
	// a guard that is open is waited for.
	sqlReplace = `UPDATE {t} SET holds = 1, token = LAST_INSERT_ID(GREATEST(token + 256, ` + sqlMicros + `)),
  acquired_at = ` + sqlNow + `, expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND, owner = {owner}
WHERE name = {name} AND owner = {from} AND @@autocommit`

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
	sqlFree  = `{r}owner = INSERT({r}owner, 1, 1, _ascii'-'), {r}holds = IF({r}waiters = x'', 0, 0 * LAST_INSERT_ID(` + sqlFirst + `)),
  {r}released_at = ` + sqlNow + `, {r}expires_at = '1970-01-01'`

	sqlRelease    = `UPDATE {t} SET ` + sqlFree + ` WHERE name = {name} AND owner = {owner} AND @@autocommit`
	sqlReleaseAll = sqlMine + `
SET ` + sqlFree

	// What a demoted primary says of the rows is the past. It refuses to write, but
	// a connection that only reads would stay with it for good. The variable is a
	// number, or from MariaDB 12 on a word.
	sqlDemoted = `CAST(@@global.read_only AS CHAR) NOT IN (_ascii'0', _ascii'OFF')`

	// An explicit LIMIT overrules sql_select_limit. What is selected is never a
	// mere column, because columnsWithAlias would put the table before its name.
	sqlLook = `SELECT CAST(name AS BINARY) AS name, CAST(owner AS BINARY) AS owner, TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, expires_at) AS micros,
  IF(waiters = x'', 0, CAST(` + sqlFirst + ` AS UNSIGNED)) AS heir, ` + sqlListed + ` OR LENGTH(waiters) > 1000 AS listed, ` + sqlDemoted + ` AS demoted
FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) LIMIT {count}`

	// What is asked of the rows and the sleep are one statement: a ring cannot
	// come between them. Only a ring ends the sleep early, or lets it fail, not a
	// time limit of the session.
	sqlListen = `/*M! SET STATEMENT max_statement_time = 60 FOR */ SELECT /*+ MAX_EXECUTION_TIME(60000) */ CAST(a.hit AS BINARY) AS hit, a.demoted + 0 AS demoted, IF(a.hit IS NULL AND NOT a.demoted, SLEEP({seconds}), 0) AS rung FROM (
  SELECT ` + sqlDemoted + ` AS demoted, IF(COUNT(*) < {count}, x'', MIN(IF(` + sqlForMe + ` OR NOT ` + sqlListed + ` AND LENGTH(waiters) <= 1000, name, NULL))) AS hit
  FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names})
) AS a`

	// The name of the bell is held by the connection that listens, and resolves to
	// that connection and no other.
	sqlBell = `SELECT GET_LOCK(_ascii'mysqllock:{id}', 0)`
	sqlRing = `KILL QUERY IS_USED_LOCK(_ascii'mysqllock:{id}')`

	// What is struck off a row that is free passes the ring on. One row is waited
	// for if somebody has it locked, of many some may be passed over.
	sqlStruck = `{r}holds = {r}holds + IF({r}expires_at <= ` + sqlNow + ` AND LENGTH({r}waiters) > 19 AND LEFT({r}waiters, 19) IN ({process}, {mute}),
    0 * LAST_INSERT_ID(SUBSTRING({r}waiters, 20, 19)), 0),
  {r}waiters = REPLACE(REPLACE({r}waiters, {process}, x''), {mute}, x'')`
	sqlLists     = `(LOCATE({process}, waiters) > 0 OR LOCATE({mute}, waiters) > 0)`
	sqlStrike    = `UPDATE {t} SET ` + sqlStruck + ` WHERE name = {name} AND ` + sqlLists + ` AND @@autocommit`
	sqlStrikeAll = sqlPick + sqlLists + sqlPicked + `
SET ` + sqlStruck

	// Read only from the index, this locks nothing but the entry of the index: a
	// guard that is open is waited for there, and hinders no renewal.
	sqlGuard = `SELECT token + 0 FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LOCK IN SHARE MODE`

	// Force moves the token, so that a guard fails from then on. It waits for one
	// that is open at the index, where it does not yet hinder renewals.
	sqlHolder = `SELECT CAST(owner AS BINARY) AS owner, token + 0 AS token FROM {t} FORCE INDEX (PRIMARY) WHERE name = {name} AND expires_at > ` + sqlNow + ` LIMIT 1`
	sqlSeize  = `SELECT token + 0 AS token FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LIMIT 1 FOR UPDATE`
	sqlForce  = `UPDATE {t} SET token = token + 256, ` + sqlFree + `
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
	sqlRaise  = `UPDATE {t} SET token = GREATEST(token, {token}) WHERE name = x''`
	sqlDelete = `DELETE FROM {t} WHERE name IN ({names})`

	sqlSession = `SELECT @@autocommit AS autocommit, @@completion_type = 'CHAIN' AS chained, CAST(NOW(6) AS CHAR) AS instant,
  @@character_set_connection IN ('utf16', 'utf16le', 'utf32', 'ucs2') AS wide`
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
	text := func(statement, r string) func() string {
		return func() string {
			list := "x''"
			if b.list != 0 {
				list = b.list.literal()
			}
			return t.query(statement, "name", literal(b.name), "owner", literal(b.owner), "from", literal(b.from),
				"label", t.label, "lease", micros(b.lease), "list", list, "r", r)
		}
	}
	ask := command{text: text(sqlAsk, "")}
	var first command
	switch {
	case b.from != "":
		first.text = text(sqlReplace, "")
	case b.list != 0:
		first = ask
	default:
		first = command{text(sqlTake, ""), t.take, []any{b.owner, b.lease.Microseconds(), hex.EncodeToString([]byte(b.name))}}
	}
	err = t.on(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		answer, sent, err := t.ask(ctx, conn, first)
		if err == nil && answer == -1 {
			answer, sent, err = t.ask(ctx, conn, ask)
		}
		if err == nil && answer == 0 && b.from == "" {
			answer, sent, err = t.ask(ctx, conn, command{text: text(sqlInsert, t.name+".")})
		}
		if err != nil {
			return err
		}
		g.sent = sent
		switch {
		case answer > 0:
			g.token = uint64(answer)
			t.mu.Lock()
			t.terms++ // before conn goes back: it may stay as the spare
			t.mu.Unlock()
		case answer == reserved:
			g.left, g.reserved = handover, true
		case answer < 0:
			g.left = duration(-answer)
		case b.from == "":
			return errAutocommit
		}
		return nil
	})
	return g, err
}

// reserved is the answer of a row that nobody holds but which is kept for
// another waiter.
const reserved = -1 << 62

var (
	errAutocommit = errors.New("this session has autocommit off, so that a lock would not be visible to others: set autocommit=1 in the DSN")
	errDemoted    = errors.New("the server is read-only")
	errFixedClock = errors.New("this session has a fixed timestamp, so that leases would be judged by a standing clock: remove timestamp from the DSN")
)

// prepare looks once at a session of the pool, and refuses those in which the
// statements would be wrong.
func (t *table) prepare(ctx context.Context, conn *sqlx.Conn) error {
	if !t.trusted.Load() {
		type session struct {
			Autocommit, Chained, Wide bool
			Instant                   string
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
	}
	return nil
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
	if t.short() {
		if mine, sent, err = t.renew(ctx, []claim{c}, lease, holds); mine || err != nil {
			return mine, sent, err
		}
	}
	cmd := t.command(sqlExtend, "name", literal(c.name), "owner", literal(c.owner), "lease", micros(lease), "holds", strconv.Itoa(holds))
	err = t.on(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		var answer int64
		answer, sent, err = t.ask(ctx, conn, cmd)
		mine = answer != 0
		return err
	})
	return mine, sent, err
}

func (t *table) renew(ctx context.Context, cs []claim, lease time.Duration, holds int) (all bool, sent time.Time, err error) {
	assign := ""
	if holds > 0 {
		assign = "l.holds = " + strconv.Itoa(holds) + ", "
	}
	res, sent, err := t.change(ctx, true, t.command(sqlRenew, append(lists(cs), "lease", micros(lease), "holds", assign)...))
	if err != nil {
		return false, sent, err
	}
	renewed, err := res.RowsAffected()
	return renewed == int64(len(cs)), sent, err
}

func (t *table) release(ctx context.Context, c claim) (freed bool, heir process, err error) {
	if t.short() {
		if n, heir, err := t.releaseAll(ctx, []claim{c}); n > 0 || err != nil {
			return n > 0, heir, err
		}
	}
	// Nothing else is held that would need the spare connection.
	t.mu.Lock()
	sole := t.terms == 1
	t.mu.Unlock()
	n, heir, err := t.free(ctx, sole, command{
		text:  func() string { return t.query(sqlRelease, "name", literal(c.name), "owner", literal(c.owner)) },
		often: t.giveUp, args: []any{hex.EncodeToString([]byte(c.name)), c.owner},
	})
	return n > 0, heir, err
}

func (t *table) releaseAll(ctx context.Context, cs []claim) (int64, process, error) {
	return t.free(ctx, true, t.command(sqlReleaseAll, append(lists(cs), "r", "l.")...))
}

func (t *table) strike(ctx context.Context, names []string, p process) (heir process, err error) {
	if len(names) == 1 {
		_, heir, err = t.free(ctx, false, t.command(sqlStrike, "name", literal(names[0]), "process", p.literal(), "mute", p.silent().literal()))
		return heir, err
	}
	_, heir, err = t.free(ctx, true, t.command(sqlStrikeAll,
		"names", literals(names), "count", strconv.Itoa(len(names)), "process", p.literal(), "mute", p.silent().literal(), "r", "l."))
	return heir, err
}

func lists(cs []claim) []string {
	owners := make([]string, len(cs))
	for i, c := range cs {
		owners[i] = c.owner
	}
	return []string{"names", literals(namesOf(cs)), "owners", literals(owners), "count", strconv.Itoa(len(cs))}
}

// change runs a statement on behalf of what is held.
func (t *table) change(ctx context.Context, spare bool, c command) (res sql.Result, sent time.Time, err error) {
	err = t.run(ctx, spare, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		sent = time.Now()
		res, err = t.exec(ctx, conn, c)
		return err
	})
	return res, sent, err
}

// free is change for statements that may free rows for which others wait.
func (t *table) free(ctx context.Context, spare bool, c command) (freed int64, heir process, err error) {
	res, _, err := t.change(ctx, spare, c)
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
	query := t.query(sqlLook, "names", literals(names), "count", strconv.Itoa(len(names)))
	var found []struct {
		Name, Owner string
		Micros      int64
		Heir        process
		Listed      bool
		Demoted     bool
	}
	err = t.onSpare(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(1)
		found = nil
		sent = time.Now()
		err := conn.SelectContext(ctx, &found, query)
		if err == nil && len(found) > 0 && found[0].Demoted {
			return errDemoted
		}
		return err
	})
	rows = make(map[string]row, len(found))
	for _, f := range found {
		rows[f.Name] = row{f.Owner, duration(f.Micros), f.Heir, f.Listed}
	}
	return rows, sent, err
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
	t.statements.Add(1)
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
func (t *table) close() { t.prepared.close() }

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
		conn, err := t.borrow(ctx, spare && try == 1)
		if err != nil {
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
	ctx, cancel := t.patient(ctx)
	defer cancel()
	err = errPanic
	defer func() { t.giveBack(conn, err, spare) }()
	if broken := t.prepare(ctx, conn); broken != nil {
		return broken
	}
	return fn(ctx, conn)
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

// patient makes such a context last if there is no other connection: a statement
// that is cut off takes its connection with it, and an application that has used
// up its pool would get the place.
func (t *table) patient(ctx context.Context) (context.Context, context.CancelFunc) {
	outer, ok := ctx.Value(briefKey{}).(context.Context)
	if !ok || !t.usedUp() {
		return ctx, func() {}
	}
	return context.WithTimeout(outer, 3*t.alone)
}

func (t *table) borrow(ctx context.Context, spare bool) (*sqlx.Conn, error) {
	if spare {
		t.mu.Lock()
		conn := t.spare
		t.spare = nil
		t.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
	}
	return t.db.Connx(ctx)
}

func (t *table) holds() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.terms > 0
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
	limit := t.db.Stats().MaxOpenConnections
	if demoted(err) || err == errPanic {
		conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	t.mu.Lock()
	keep := answered(err) && !demoted(err) && t.terms > 0 && t.spare == nil && (limit > 1 || limit == 0 && renewed)
	if keep {
		t.spare = conn
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

// ended tells whether the server said that it ends the connection.
func ended(err error) bool {
	switch number(err) {
	case 1053, 1927, 1152, 1184, 4031: // shutdown, killed, aborted, idle for too long
		return true
	}
	return false
}

// demoted tells whether the server does not write: of its own, or for everybody.
func demoted(err error) bool {
	n := number(err)
	return err == errDemoted || n == 1290 || n == 1836 // option prevents the statement, read-only mode
}

// notSent marks an error that came before the statement could reach the server.
type notSent struct{ error }

func (e notSent) Unwrap() error { return e.error }

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
	case 1317, 1969, 3024, // interrupted by KILL QUERY or a time limit
		1040, 1203, // too many connections
		1047, 1180: // a Galera node without quorum; found so while it committed
		return true
	}
	return contended(err) || ended(err)
}

// contended tells whether the statement met others at the row: deadlock, lock
// wait timeout, or changed since the snapshot (MariaDB).
func contended(err error) bool {
	switch number(err) {
	case 1213, 1205, 1020:
		return true
	}
	return false
}

// final tells whether an error that is not the server's will be met again.
func final(err error) bool {
	return errors.Is(err, errDemoted) || errors.Is(err, errAutocommit) || errors.Is(err, errFixedClock) || errors.Is(err, mysql.ErrPktTooLarge) ||
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
		return ended(err) || number(err) == 1180 // ER_ERROR_DURING_COMMIT
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

// force frees the row whoever holds it and returns the owner it had, "" if none.
func (t *table) force(ctx context.Context, name string) (owner string, heir process, err error) {
	err = t.inTransaction(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		t.statements.Add(3)
		pairs := []string{"name", literal(name)}
		var holder struct {
			Owner string
			Token uint64
		}
		err := conn.GetContext(ctx, &holder, t.query(sqlHolder, pairs...))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		pairs = append(pairs, "token", strconv.FormatUint(holder.Token, 10))
		var seized uint64
		err = conn.GetContext(ctx, &seized, t.query(sqlSeize, pairs...))
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
	if errors.Is(err, errMoved) {
		return t.force(ctx, name)
	}
	return owner, heir, err
}

var errMoved = errors.New("somebody else has it by now")

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
		res, err := conn.ExecContext(ctx, t.query(sqlDelete, "names", literals(names)))
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

// guard locks the index entry of the token within tx.
func (t *table) guard(ctx context.Context, tx Queryer, name string, token uint64) error {
	t.statements.Add(1)
	switch tx.(type) {
	case *sql.DB, *sqlx.DB:
		return errors.New("a pool is no transaction: pass a *sql.Tx, or the *sql.Conn that it runs on")
	}
	err := tx.QueryRowContext(ctx, t.query(sqlGuard, "name", literal(name), "token", strconv.FormatUint(token, 10))).Scan(&token)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrLost
	}
	return told(err)
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
