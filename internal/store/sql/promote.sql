-- Grants a name to the exclusive request that has claimed it, unless it is held shared. {skip}
-- is empty, or SKIP LOCKED.
--
-- | row                                 | written                                           | answer        |
-- |-------------------------------------|---------------------------------------------------|---------------|
-- | claimed by {owner}, not held shared | the grant, mode 0; the queue without this process | the token     |
-- | claimed by {owner}, held shared     | the later end of the claim; {enlist} in the queue | answerClaimed |
-- | claimed by {owner}, guarded         | the same                                          | answerLocked  |
-- | granted to {owner}                  | the later lease end                               | the token     |
-- | owned by another, or missing        | nothing                                           | 0             |
-- | locked, with SKIP LOCKED            | nothing                                           | 0             |
-- | a shared hold's row is locked       | nothing                                           | an error      |
-- | any, while autocommit is off        | nothing                                           | 0             |
--
-- Like every statement that locks both p and rows of shared holds, this one locks p first. The grant
-- does not wait for guards, because it would keep these locks while it waits. Since the claim, nobody
-- can have joined, and a shared hold that has ended cannot become one again. An earlier copy may have
-- been granted before this one was sent, so this one extends the lease.
{>no_safe_updates} UPDATE {>no_rewrite} (
  SELECT
    p.name, p.mode = 0 AS granted, {>listed} AS listed,
    REPLACE(REPLACE(REPLACE(p.waiters, {self}, x''), {polling}, x''), {direct}, x'') AS rest,
    {>alone} AS alone,
    {>guarded} AS guarded
  FROM {t} AS p FORCE INDEX (PRIMARY)
  WHERE p.name = {name} AND p.owner = {owner} AND @@autocommit
  LIMIT 1 FOR UPDATE {skip}
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.token = IF(mine.granted, LAST_INSERT_ID(l.token),
    IF(mine.alone AND NOT mine.guarded, LAST_INSERT_ID(GREATEST(l.token + 256, {>now_micros})),
      l.token + 0 * LAST_INSERT_ID(IF(mine.alone, -4611686018427387903, -2305843009213693952)))),
  l.mode = IF(mine.alone AND NOT mine.guarded, 0, l.mode),
  l.acquired_at = IF(mine.granted, l.acquired_at, {>now}),
  l.waiters = IF(mine.granted, l.waiters,
    IF(mine.alone AND NOT mine.guarded, mine.rest,
      IF(mine.listed OR LENGTH(l.waiters) > 1000, l.waiters, CONCAT({enlist}, l.waiters)))),
  l.expires_at = IF(mine.granted, GREATEST(l.expires_at, {>new_lease}),
    IF(mine.alone AND NOT mine.guarded, {>new_lease}, GREATEST(l.expires_at, {>now} + INTERVAL {claimLease} MICROSECOND)))
