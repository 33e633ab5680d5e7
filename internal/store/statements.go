package store

// The statements, with the placeholders of query. {r} qualifies the row's columns.
//
// A row is held while expires_at, its own lease, is in the future, or while the session
// to which it is bound is alive. UTC_TIMESTAMP(6) is one instant within a statement. An assignment reads the row either as it was before the statement
// (sql_mode SIMULTANEOUS_ASSIGNMENT of MariaDB) or after the assignments to its left, so
// a column is assigned after everything that depends on it. LAST_INSERT_ID(x) returns x
// in the reply to the statement itself: a token is positive, the microseconds left of
// another holder's lease are negative, the answers in acquire.go are below those, and the
// numbers of sessions are above all tokens.
// (https://dev.mysql.com/doc/refman/8.4/en/information-functions.html#function_last-insert-id)
const (
	sqlNow = "UTC_TIMESTAMP(6)"

	// A new token is above the range of the last holder, and above every token that
	// this clock granted on a server from which the last grants were not replicated.
	sqlMicros = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', " + sqlNow + ")"

	// A free row is reserved for the head of its wait queue, for ReservedFor.
	sqlReserved = `GREATEST({r}expires_at, {r}released_at)
    BETWEEN ` + sqlNow + ` - INTERVAL IF(LEFT({r}waiters, 1) < _ascii'4', 1500000, 250000) MICROSECOND AND ` + sqlNow
	sqlNotReserved = `({r}waiters = x'' OR LEFT({r}waiters, 19) IN ({self}, {polling}) OR NOT (` + sqlReserved + `))`
	sqlAvailable   = `{r}expires_at <= ` + sqlNow + ` AND ` + sqlUnbound + ` AND ` + sqlNotReserved
	sqlListed      = `(LOCATE({self}, {r}waiters) > 0 OR LOCATE({polling}, {r}waiters) > 0)`
	sqlRemaining   = `IF({r}expires_at > ` + sqlNow + `, -TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, {r}expires_at), IF(` + sqlUnbound + `, -4611686018427387904, CAST({r}session AS SIGNED)))`

	// A statement that acquires does not read the row of a session: a locking read would
	// delay the session's renewal. It knows one dead session, and answers with the number
	// of any other to which an expired row is bound.
	sqlUnbound = `{r}session IN (0, {dead})`
	// s is the session that keeps the row l, if that session is alive.
	sqlKept = `{t} AS l FORCE INDEX (PRIMARY) LEFT JOIN {t} AS s FORCE INDEX (PRIMARY)
  ON l.session <> 0 AND s.name = CONCAT(x'00', CAST(LEFT(l.owner, 19) AS BINARY)) AND s.session = l.session AND s.expires_at > ` + sqlNow + `
`
	sqlKeptUntil = `GREATEST(l.expires_at, COALESCE(s.expires_at, l.expires_at))`

	// A session begins once, and only after every earlier one of its process: a duplicate
	// that arrives late changes nothing, and its answer is 1.
	sqlSessionBegins = `({t}.session < {id} OR {t}.session = {id} AND {t}.expires_at > ` + sqlNow + `)`
	sqlBeginSession  = `INSERT INTO {t} (name, holder, session, expires_at)
SELECT {session}, {label}, LAST_INSERT_ID({id}), ` + sqlNow + ` + INTERVAL {lease} MICROSECOND
FROM (SELECT @@autocommit AS trusted) AS s WHERE s.trusted
ON DUPLICATE KEY UPDATE holder = {label},
  expires_at = IF(` + sqlSessionBegins + `, GREATEST({t}.expires_at, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND), {t}.expires_at),
  session = IF(` + sqlSessionBegins + `, {id}, {t}.session + 0 * LAST_INSERT_ID(1))`

	// An expired session stays dead: a contender may have taken one of its locks. The
	// answer has the server, and when one of the locks of this process was last freed by
	// force, of which 31 bits are enough to see a change.
	sqlForced       = `(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', p.released_at) & 2147483647)`
	sqlServer       = `((@@global.server_id & 2147483647) << 31)`
	sqlAlive        = `name = {session} AND session = {id} AND expires_at > ` + sqlNow
	sqlRenewSession = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ UPDATE (
  SELECT name FROM {t} FORCE INDEX (PRIMARY) WHERE ` + sqlAlive + ` AND @@autocommit LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine STRAIGHT_JOIN {t} AS p FORCE INDEX (PRIMARY) ON p.name = mine.name
SET p.holds = p.holds + 0 * LAST_INSERT_ID(4611686018427387904 | ` + sqlServer + ` | ` + sqlForced + `),
  p.expires_at = GREATEST(p.expires_at, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND)`
	sqlIsAlive    = sqlUnlimited + ` COUNT(*) > 0 AS alive FROM {t} FORCE INDEX (PRIMARY) WHERE ` + sqlAlive
	sqlCountBound = sqlUnlimited + ` COUNT(*) AS bound FROM {t} FORCE INDEX (session) WHERE session = {id} AND name > x'01'`
	sqlBound      = sqlUnlimited + ` CAST(name AS BINARY) AS name, CAST(owner AS BINARY) AS owner FROM {t} FORCE INDEX (session)
WHERE session = {id} AND name > x'01' LIMIT 18446744073709551615`
	sqlEndSession = `UPDATE {t} SET expires_at = '1970-01-01' WHERE name = {session} AND session = {id} AND @@autocommit`

	// A contender reads the session of another process without a lock. Before it takes a
	// row, it makes sure that a session which has expired stays dead even if the clock is
	// set back.
	sqlKeeper = sqlUnlimited + ` CAST(COALESCE(s.name, x'') AS BINARY) AS name, COALESCE(TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, s.expires_at), 0) AS micros
FROM {t} AS l FORCE INDEX (PRIMARY) LEFT JOIN {t} AS s FORCE INDEX (PRIMARY)
  ON s.name = CONCAT(x'00', CAST(LEFT(l.owner, 19) AS BINARY)) AND s.session = l.session
WHERE l.name = {name} AND l.session = {id} LIMIT 1`
	sqlMarkDead = `UPDATE {t} SET holds = holds + 0 * LAST_INSERT_ID(1), expires_at = '1970-01-01'
WHERE name = {keeper} AND session = {id} AND expires_at <= ` + sqlNow + ` AND @@autocommit`

	// Without autocommit it would keep the holder's session locked.
	sqlMarkForced = `INSERT INTO {t} (name, released_at)
SELECT {keeper}, ` + sqlNow + ` FROM (SELECT @@autocommit AS trusted) AS s WHERE s.trusted
ON DUPLICATE KEY UPDATE released_at = GREATEST(` + sqlNow + `, {t}.released_at + INTERVAL 1 MICROSECOND)`

	// A process that takes the row leaves the wait queue. A head that did not take the row
	// in time is removed: a dead one would delay every handoff. A row that is held was
	// taken by an earlier copy of the same statement.
	sqlWaitersAfterTake = `IF({r}waiters = x'', x'', REPLACE(REPLACE(
      IF(LEFT({r}waiters, 19) IN ({self}, {polling}) OR {r}expires_at > ` + sqlNow + `, {r}waiters, SUBSTRING({r}waiters, 20)), {self}, x''), {polling}, x''))`

	// The common case: no process waits. If one does and the row is free, the answer is
	// -1. Without autocommit nobody else would see the grant, so no statement matches a
	// row there. A proxy that lost the reply may send an acquiring statement again, so
	// each recognizes its own grant.
	sqlTake = `UPDATE {t} SET owner = {owner}, holder = {label}, holds = 1,
  token = LAST_INSERT_ID(GREATEST(token + 256, ` + sqlMicros + `)), acquired_at = ` + sqlNow + `,
  expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND, session = 0
WHERE name = {name} AND @@autocommit AND IF(expires_at <= ` + sqlNow + ` AND session IN (0, {dead}) AND waiters = x'', 1,
  0 * LAST_INSERT_ID(IF(owner = {owner} AND expires_at > ` + sqlNow + `, CAST(token AS SIGNED),
    IF(expires_at > ` + sqlNow + ` OR session IN (0, {dead}), -GREATEST(1, TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, expires_at)), CAST(session AS SIGNED)))))`

	// One owner of this process takes over from another. The token changes, so the
	// statement waits for an open guard.
	sqlReplace = `UPDATE {t} SET session = IF(owner = {owner}, session, 0), holds = 1, token = LAST_INSERT_ID(GREATEST(token + 256, ` + sqlMicros + `)),
  acquired_at = ` + sqlNow + `, expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND, owner = {owner}
WHERE name = {name} AND owner IN ({replaces}, {owner}) AND @@autocommit`

	// The general case, which observes the wait queue and can append this process to it.
	// Once owner is assigned, it alone decides. A copy of the statement, which finds its own
	// grant, leaves the row bound.
	sqlTaken           = `{r}owner = {owner} OR ` + sqlAvailable
	sqlTakeOrEnlistSet = `
  session = IF(` + sqlAvailable + `, 0, {r}session),
  owner = IF(` + sqlAvailable + `, {owner}, {r}owner),
  token = IF(` + sqlTaken + `, LAST_INSERT_ID(GREATEST({r}token + 256, ` + sqlMicros + `)), {r}token + 0 * LAST_INSERT_ID(` + sqlRemaining + `)),
  holds = IF(` + sqlTaken + `, 1, {r}holds),
  holder = IF(` + sqlTaken + `, {label}, {r}holder),
  acquired_at = IF(` + sqlTaken + `, ` + sqlNow + `, {r}acquired_at),
  waiters = IF(` + sqlTaken + `, ` + sqlWaitersAfterTake + `,
    IF({enlist} = x'' OR ` + sqlListed + ` OR LENGTH({r}waiters) > 1000, {r}waiters, CONCAT({r}waiters, {enlist}))),
  expires_at = IF(` + sqlTaken + `, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND, {r}expires_at)`

	sqlTakeOrEnlist = `UPDATE {t} SET` + sqlTakeOrEnlistSet + `
WHERE name = {name} AND @@autocommit`

	// The shared lock on the high-water row makes this statement and Purge wait for each
	// other: otherwise a token could be below one that was deleted meanwhile. {t} cannot
	// have the name of the alias.
	sqlHighWaterAlias = "`high water`"
	sqlInsert         = `INSERT INTO {t} (name, owner, holder, holds, token, acquired_at, expires_at)
SELECT {name}, {owner}, {label}, 1, LAST_INSERT_ID(GREATEST(COALESCE(` + sqlHighWaterAlias + `.token, 0) + 256, ` + sqlMicros + `)),
  ` + sqlNow + `, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND
FROM (SELECT @@autocommit AS trusted) AS s LEFT JOIN {t} AS ` + sqlHighWaterAlias + ` ON ` + sqlHighWaterAlias + `.name = x'' WHERE s.trusted
LOCK IN SHARE MODE
ON DUPLICATE KEY UPDATE` + sqlTakeOrEnlistSet

	// Without a slot in rowWaits, no statement may wait for a row. The derived table locks
	// the row and its entry in the guard index, and skips both if either is locked.
	sqlUnlocked = `{t} AS p FORCE INDEX (PRIMARY) STRAIGHT_JOIN {t} AS g FORCE INDEX (guard) ON g.token = p.token AND g.name = p.name
  WHERE p.name = {name}`
	sqlTakeUnlocked = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ UPDATE (
  SELECT p.name, p.owner = {owner} AS copied FROM ` + sqlUnlocked + ` AND {available} AND @@autocommit
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET l.holder = {label}, l.holds = 1, l.acquired_at = ` + sqlNow + `, l.waiters = {waiters},
  l.token = LAST_INSERT_ID(GREATEST(l.token + 256, ` + sqlMicros + `)),
  l.owner = {owner}, l.expires_at = ` + sqlNow + ` + INTERVAL {lease} MICROSECOND, l.session = IF(mine.copied, l.session, 0)`
	sqlWhyRefused = sqlUnlimited + ` ` + sqlRemaining + ` AS answer, @@autocommit AS autocommit, (` + sqlAvailable + `) + 0 AS available, (` + sqlListed + ` OR LENGTH(waiters) > 1000) + 0 AS listed
FROM {t} FORCE INDEX (PRIMARY) WHERE name = {name} LIMIT 1`
	sqlEnlist = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ UPDATE (
  SELECT name FROM {t} FORCE INDEX (PRIMARY) WHERE name = {name} AND NOT ` + sqlListed + ` AND LENGTH(waiters) <= 1000 AND @@autocommit
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET l.waiters = CONCAT(l.waiters, {enlist})`
	sqlProbe = sqlUnlimited + ` r.owner <> {owner} AND (r.expires_at > ` + sqlNow + ` OR r.session NOT IN (0, {dead})) AS held, (
  SELECT COUNT(*) FROM (SELECT p.name FROM ` + sqlUnlocked + ` LIMIT 1 FOR UPDATE SKIP LOCKED) AS u
) AS unlocked
FROM {t} AS r FORCE INDEX (PRIMARY) WHERE r.name = {name} LIMIT 1`

	// An account sees its own statements without the PROCESS privilege.
	sqlExecutes = sqlUnlimited + ` COUNT(*) > 0 AS executes FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND INSTR(info, {owner}) > 0`

	sqlExtend = `UPDATE {t} SET {bind}holds = {holds},
  token = token + 0 * LAST_INSERT_ID(1),
  expires_at = GREATEST(expires_at, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND)
WHERE name = {name} AND owner = {owner} AND @@autocommit`

	// The derived table picks and locks the rows, and skips those that are locked. MySQL
	// would merge it without the LIMIT, and both servers would scan, and lock, the whole
	// of a small table without FORCE INDEX. The comment is for MariaDB alone, which does
	// not see that the join uses the key.
	sqlPick = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ UPDATE (
  SELECT name FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) AND `
	sqlPicked = ` AND @@autocommit
  LIMIT {count} FOR UPDATE SKIP LOCKED
) AS mine STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name`
	sqlPickOwned = sqlPick + `owner IN ({owners})` + sqlPicked

	// A late renewal cannot shorten a newer one.
	sqlRenew = sqlPickOwned + `
SET {holds}{bind}l.expires_at = GREATEST(l.expires_at, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND)`

	// The token, whose index entry a guard may have locked, is unchanged. The answer is the
	// head of the wait queue. Overwriting one byte of the owner id keeps the row's length,
	// so InnoDB updates it in place.
	sqlHead  = `LEFT({r}waiters, 19)`
	sqlFree  = `{r}owner = INSERT({r}owner, 1, 1, _ascii'-'), ` + sqlFreed
	sqlFreed = `{r}holds = IF({r}waiters = x'', 0, 0 * LAST_INSERT_ID(` + sqlHead + `)),
  {r}released_at = ` + sqlNow + `, {r}session = 0, {r}expires_at = '1970-01-01'`

	// A release also matches a row that it has released: a proxy that lost the reply may
	// send it twice. sqlForce marks the owner id differently, so a holder whose lock was
	// forced does not find it released.
	sqlRelease    = `UPDATE {t} SET ` + sqlFree + ` WHERE name = {name} AND owner IN ({owner}, {released}) AND @@autocommit`
	sqlReleaseAll = sqlPickOwned + `
SET ` + sqlFree

	// The rows of a demoted primary are out of date. It refuses writes, but a connection
	// that only reads would never leave it. The variable is a number, or a word from
	// MariaDB 12 on.
	sqlDemoted = `CAST(@@global.read_only AS CHAR) NOT IN (_ascii'0', _ascii'OFF')`

	// The library's own reads end with their context, not by a time limit meant for
	// queries of the application.
	sqlUnlimited = `/*M! SET STATEMENT max_statement_time = 60 FOR */ SELECT /*+ MAX_EXECUTION_TIME(60000) */`

	// An explicit LIMIT overrides sql_select_limit. No bare column is selected, because
	// columnsWithAlias would prefix its name with the table.
	sqlLook = sqlUnlimited + ` CAST(l.name AS BINARY) AS name, CAST(l.owner AS BINARY) AS owner,
  TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, l.expires_at) AS lease, TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, ` + sqlKeptUntil + `) AS micros,
  IF(l.waiters = x'', 0, CAST(` + sqlHead + ` AS UNSIGNED)) AS next, ` + sqlListed + ` OR LENGTH(l.waiters) > 1000 AS waiting, ` + sqlListed + ` AS listed, ` + sqlDemoted + ` AS demoted
FROM ` + sqlKept + `WHERE l.name IN ({names}) LIMIT {count}`

	// Applies to the next transaction, which is the next statement.
	sqlReadCommitted = `SET TRANSACTION ISOLATION LEVEL READ COMMITTED`

	// One statement checks the rows and sleeps, so that no signal falls between. Only a
	// signal ends the sleep early, or makes it fail.
	sqlListen = sqlUnlimited + ` CAST(a.hit AS BINARY) AS hit, a.demoted + 0 AS demoted, a.forced + 0 AS forced,
  IF(a.hit IS NULL AND NOT a.demoted AND a.forced = {forced}, SLEEP({seconds}), 0) AS signalled FROM (
  SELECT ` + sqlDemoted + ` AS demoted, (SELECT COALESCE(MAX(` + sqlForced + `), 0) FROM {t} AS p WHERE p.name = {session}) AS forced,
    IF(COUNT(*) < {count}, x'', MIN(IF(l.expires_at <= ` + sqlNow + ` AND s.name IS NULL AND ` + sqlNotReserved + `
      OR NOT ` + sqlListed + ` AND LENGTH(l.waiters) <= 1000, l.name, NULL))) AS hit
  FROM ` + sqlKept + `  WHERE l.name IN ({names})
) AS a`

	// A sleeping listener is no slow query. On MySQL, slow_query_log is global only, so the
	// comment is for MariaDB alone.
	sqlNotSlow = `SET SESSION /*M! slow_query_log = 0, */ long_query_time = 31536000`

	// The listener's connection holds this name, so a signal reaches that connection and no
	// other.
	sqlListenName = `SELECT GET_LOCK(_ascii'mysqllock:{id}', 0)`
	sqlSignal     = `KILL QUERY IS_USED_LOCK(_ascii'mysqllock:{id}')`

	// If the head of a free row's wait queue is removed, the answer is the next process.
	sqlRemoved = `{r}holds = {r}holds + IF({r}expires_at <= ` + sqlNow + ` AND {r}session = 0 AND LENGTH({r}waiters) > 19 AND LEFT({r}waiters, 19) IN ({process}, {pollingID}),
    0 * LAST_INSERT_ID(SUBSTRING({r}waiters, 20, 19)), 0),
  {r}waiters = REPLACE(REPLACE({r}waiters, {process}, x''), {pollingID}, x'')`
	sqlQueued       = `(LOCATE({process}, waiters) > 0 OR LOCATE({pollingID}, waiters) > 0)`
	sqlRemoveWaiter = sqlPick + sqlQueued + sqlPicked + `
SET ` + sqlRemoved

	// Reads only the index, so it locks only the index entry: a change of owner waits for
	// it, and a renewal does not.
	sqlGuardNow = `SELECT token + 0 FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LOCK IN SHARE MODE`

	// If the entry is missing, sqlGuardNow locks the gap around it under REPEATABLE READ:
	// for a deleted row the end of the index, where every grant would wait. So the derived
	// table looks for the entry without a lock first. The LIMIT prevents MySQL from merging
	// it. SERIALIZABLE locks the gap even so.
	sqlGuard = `SELECT l.token + 0 FROM (
  SELECT token, name FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LIMIT 1
) AS seen STRAIGHT_JOIN {t} AS l FORCE INDEX (guard) ON l.token = seen.token AND l.name = seen.name LOCK IN SHARE MODE`

	// sqlForce changes the token, so that every later guard fails. sqlSeize waits for open
	// guards at the index, where it delays no renewal. Later guards wait behind it, even if
	// its caller has given up, so the server ends it after a second.
	sqlHolder = `SELECT CAST(l.owner AS BINARY) AS owner, l.token + 0 AS token FROM ` + sqlKept + `WHERE l.name = {name} AND (l.expires_at > ` + sqlNow + ` OR s.name IS NOT NULL) LIMIT 1`
	sqlSeize  = `/*M! SET STATEMENT max_statement_time = 1 FOR */ SELECT /*+ MAX_EXECUTION_TIME(1000) */ token + 0 AS token FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LIMIT 1 FOR UPDATE`
	sqlForce  = `UPDATE {t} SET token = token + 256, owner = INSERT(owner, 1, 1, _ascii'!'), ` + sqlFreed + `
WHERE name = {name} AND token = {token} AND (expires_at > ` + sqlNow + ` OR session <> 0)`

	sqlInfo = `SELECT CAST(l.name AS BINARY) AS name, CAST(l.owner AS BINARY) AS owner, CAST(l.holder AS BINARY) AS holder,
  l.holds + 0 AS holds, l.token + 0 AS token,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.acquired_at) AS acquired,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ` + sqlKeptUntil + `) AS expires,
  TIMESTAMPDIFF(MICROSECOND, ` + sqlNow + `, ` + sqlKeptUntil + `) AS micros, LENGTH(l.waiters) DIV 19 AS waiters
FROM ` + sqlKept

	sqlInspect = sqlInfo + `WHERE l.name = {name} LIMIT 1`
	sqlList    = sqlInfo + `WHERE l.name > x'01' AND (l.expires_at > ` + sqlNow + ` OR s.name IS NOT NULL) ORDER BY l.name LIMIT 18446744073709551615`

	sqlAddHighWater = `INSERT INTO {t} (name) VALUES (x'') ON DUPLICATE KEY UPDATE name = x''`
	sqlHasHighWater = `SELECT COUNT(*) FROM {t} WHERE name = x'' LIMIT 1`

	sqlIdleSince = `{r}expires_at <= ` + sqlNow + ` - INTERVAL {idle} MICROSECOND AND {r}released_at <= ` + sqlNow + ` - INTERVAL {idle} MICROSECOND`
	sqlIdle      = `{r}name > x'01' AND ` + sqlIdleSince

	// Purge walks the primary key. Its locking read uses the guard index, to skip rows
	// that a guard has locked.
	sqlIdleNames = `SELECT CAST(l.name AS BINARY) AS name, l.token + 0 AS token FROM ` + sqlKept + `WHERE l.name > {name} AND ` + sqlIdle + ` AND s.name IS NULL ORDER BY l.name LIMIT {count}`
	sqlHighWater = `SELECT token + 0 AS token FROM {t} WHERE name = x'' LIMIT 1 FOR UPDATE`
	sqlIdleLock  = `SELECT CAST(name AS BINARY) AS name, token + 0 AS token FROM {t} FORCE INDEX (guard)
WHERE token IN ({tokens}) AND ` + sqlIdle + ` LIMIT 18446744073709551615 FOR UPDATE SKIP LOCKED`
	sqlDeadSessions = `SELECT CAST(name AS BINARY) AS name FROM {t} FORCE INDEX (PRIMARY)
WHERE name BETWEEN x'00' AND x'01' AND name > {name} AND ` + sqlIdleSince + ` ORDER BY {t}.name LIMIT {count}`
	sqlRaise = `UPDATE {t} SET token = GREATEST(token, {token}) WHERE name = x''`
	// A plain DELETE of many names scans the whole table, and waits for every locked row.
	// Deleting by an alias needs a default database. {t} cannot have the name of the picked
	// rows.
	sqlPickedRows = "`picked rows`"
	sqlDelete     = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ DELETE {t} FROM (
  SELECT name FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) AND {condition} LIMIT {count} FOR UPDATE SKIP LOCKED
) AS ` + sqlPickedRows + ` STRAIGHT_JOIN {t} FORCE INDEX (PRIMARY) ON {t}.name = ` + sqlPickedRows + `.name`

	sqlSettings = sqlUnlimited + ` @@autocommit AS autocommit, @@completion_type = 'CHAIN' AS chained, CAST(NOW(6) AS CHAR) AS instant,
  @@character_set_connection IN ('utf16', 'utf16le', 'utf32', 'ucs2') AS wide, CAST(@@version AS BINARY) AS version`
	sqlSettle = `COMMIT AND NO CHAIN NO RELEASE`
)
