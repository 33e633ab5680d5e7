package store

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
	sqlTaken           = `{r}owner = {owner} OR ` + sqlForMe
	sqlTakeOrEnlistSet = `
  owner = IF(` + sqlForMe + `, {owner}, {r}owner),
  token = IF(` + sqlTaken + `, LAST_INSERT_ID(GREATEST({r}token + 256, ` + sqlMicros + `)), {r}token + 0 * LAST_INSERT_ID(` + sqlLeft + `)),
  holds = IF(` + sqlTaken + `, 1, {r}holds),
  holder = IF(` + sqlTaken + `, {label}, {r}holder),
  acquired_at = IF(` + sqlTaken + `, ` + sqlNow + `, {r}acquired_at),
  waiters = IF(` + sqlTaken + `, ` + sqlUnlisted + `,
    IF({list} = x'' OR ` + sqlListed + ` OR LENGTH({r}waiters) > 1000, {r}waiters, CONCAT({r}waiters, {list}))),
  expires_at = IF(` + sqlTaken + `, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND, {r}expires_at)`

	sqlTakeOrEnlist = `UPDATE {t} SET` + sqlTakeOrEnlistSet + `
WHERE name = {name} AND @@autocommit`

	// The shared lock on the high-water row makes Purge wait for this statement
	// and this statement for Purge: without it a token could fall behind one
	// that was deleted while the statement was under way. Its alias is a name that
	// {t} cannot have.
	sqlHighWaterAlias = "`high water`"
	sqlInsert         = `INSERT INTO {t} (name, owner, holder, holds, token, acquired_at, expires_at)
SELECT {name}, {owner}, {label}, 1, LAST_INSERT_ID(GREATEST(COALESCE(` + sqlHighWaterAlias + `.token, 0) + 256, ` + sqlMicros + `)),
  ` + sqlNow + `, ` + sqlNow + ` + INTERVAL {lease} MICROSECOND
FROM (SELECT @@autocommit AS trusted) AS s LEFT JOIN {t} AS ` + sqlHighWaterAlias + ` ON ` + sqlHighWaterAlias + `.name = x'' WHERE s.trusted
LOCK IN SHARE MODE
ON DUPLICATE KEY UPDATE` + sqlTakeOrEnlistSet

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
	sqlListenName = `SELECT GET_LOCK(_ascii'mysqllock:{id}', 0)`
	sqlSignal     = `KILL QUERY IS_USED_LOCK(_ascii'mysqllock:{id}')`

	// What is struck off a row that is free passes the ring on.
	sqlStruck = `{r}holds = {r}holds + IF({r}expires_at <= ` + sqlNow + ` AND LENGTH({r}waiters) > 19 AND LEFT({r}waiters, 19) IN ({process}, {mute}),
    0 * LAST_INSERT_ID(SUBSTRING({r}waiters, 20, 19)), 0),
  {r}waiters = REPLACE(REPLACE({r}waiters, {process}, x''), {mute}, x'')`
	sqlLists        = `(LOCATE({process}, waiters) > 0 OR LOCATE({mute}, waiters) > 0)`
	sqlRemoveWaiter = sqlPick + sqlLists + sqlPicked + `
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
	// every locked row of it waited for.
	sqlDelete = `/*M! SET STATEMENT sql_safe_updates = 0 FOR */ DELETE l FROM (
  SELECT name FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) LIMIT {count} FOR UPDATE SKIP LOCKED
) AS mine STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name`

	sqlSession = sqlUnlimited + ` @@autocommit AS autocommit, @@completion_type = 'CHAIN' AS chained, CAST(NOW(6) AS CHAR) AS instant,
  @@character_set_connection IN ('utf16', 'utf16le', 'utf32', 'ucs2') AS wide, CAST(@@version AS BINARY) AS version`
	sqlSettle = `COMMIT AND NO CHAIN NO RELEASE`
)
