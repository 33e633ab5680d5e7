-- Admits a request to share a name, so that join may then add the row of its hold. If the request is
-- refused, the statement adds the process to the wait queue. The first request after an exclusive hold
-- opens a shared phase, whose holds all have the same token. {skip} is empty, or SKIP LOCKED.
--
-- | row                                  | written                               | answer       |
-- |--------------------------------------|---------------------------------------|--------------|
-- | available, of mode 1: in a phase     | {admitted}                            | 1            |
-- | available, of mode 0 or 2            | {admitted}, mode 1, a new token       | 1            |
-- | the same, guarded, with SKIP LOCKED  | nothing                               | answerLocked |
-- | admitted by a copy of this statement | the same, again                       | 1            |
-- | held, claimed, kept or reserved      | {enlist} at the end of the wait queue | {>remaining} |
-- | locked, with SKIP LOCKED             | nothing                               | 0            |
-- | missing, or autocommit is off        | nothing                               | 0            |
--
-- The new owner id belongs to no acquisition, so the last hold can never be extended. While the row has
-- it, join knows that nobody has claimed the name. A new token waits for the guards of exclusive
-- holders. Setting released_at reserves the row for the head of the wait queue, as after a release.
-- Setting expires_at prevents the expired lease from running again if the clock is set back. A read of
-- the guard index would lock an entry even if the rest of the condition fails; a key of NULL prevents
-- that. An UPDATE of two tables may assign in any order, so values that depend on other columns come
-- from mine.
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT
    p.name, p.mode = 1 AS phase,
    p.mode = 1 AND p.owner = {admitted} OR ({>available}) AND (p.mode = 1 OR g.name IS NOT NULL) AS admitted,
    IF({>available}, -4611686018427387903, {>remaining}) AS refusal,
    {>waiters_after_take} AS rest,
    {>waiters_enlisted} AS waiters
  FROM {t} AS p FORCE INDEX (PRIMARY)
  LEFT JOIN {t} AS g FORCE INDEX (guard) ON g.token = IF(p.mode <> 1 AND {>available}, p.token, NULL) AND g.name = p.name
  WHERE p.name = {name} AND @@autocommit
  LIMIT 1 FOR UPDATE {skip}
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.token = IF(mine.admitted AND NOT mine.phase, GREATEST(l.token + 256, {>now_micros}), l.token),
  l.mode = IF(mine.admitted, 1, l.mode),
  l.owner = IF(mine.admitted, {admitted}, l.owner),
  l.holds = IF(mine.admitted, 0 * LAST_INSERT_ID(1), l.holds + 0 * LAST_INSERT_ID(mine.refusal)),
  l.session = IF(mine.admitted, 0, l.session),
  l.released_at = IF(mine.admitted, {>now}, l.released_at),
  l.expires_at = IF(mine.admitted, TIMESTAMP'1970-01-01 00:00:00', l.expires_at),
  l.waiters = IF(mine.admitted, mine.rest, mine.waiters)
