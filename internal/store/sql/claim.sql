-- Claims a name that may be held shared, for an exclusive request. From then on, all other requests are
-- refused until promote has granted the name. A name of mode 0 is granted at once. {skip} is empty, or
-- SKIP LOCKED.
--
-- | row                                           | written                                 | answer        |
-- |-----------------------------------------------|-----------------------------------------|---------------|
-- | available, of mode 0                          | the grant, bound to no session          | the token     |
-- | the same, guarded, with SKIP LOCKED           | nothing                                 | answerLocked  |
-- | available, of mode 1 or 2                     | the claim; {enlist} first in the queue  | answerClaimed |
-- | claimed by {owner}                            | the later end of the claim              | answerClaimed |
-- | granted to a copy, or by promote              | the later lease end                     | the token     |
-- | available, but {owner} was released there     | {enlist} at the end of the wait queue   | answerLocked  |
-- | held, claimed by another, kept or reserved    | the same                                | {>remaining}  |
-- | locked, with SKIP LOCKED                      | nothing                                 | 0             |
-- | missing, or autocommit is off                 | nothing                                 | 0             |
--
-- A request may send this statement several times. If the last one is executed after the release of the
-- claim, it must not claim the name for nobody.
--
-- A claim does not change the token, so it waits for no guard. An UPDATE of two tables may assign in
-- any order, so values that depend on other columns come from mine. A key of NULL reads no entry of
-- the guard index, and so locks none.
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT
    p.name,
    p.mode = 0 AND p.owner = {owner} AS granted,
    p.mode = 0 AND p.owner NOT IN ({owner}, {released}) AND {>available} AND g.name IS NOT NULL AS taken,
    p.mode <> 0 AND (p.owner = {owner} OR p.owner <> {released} AND {>available}) AS claimed,
    IF({>available}, -4611686018427387903, {>remaining}) AS refusal,
    p.owner = {owner} AND {>listed} AS listed,
    IF(p.owner = {owner} AND ({>listed} OR p.mode = 0), p.waiters, {>waiters_after_take}) AS rest,
    {>waiters_enlisted} AS waiters
  FROM {t} AS p FORCE INDEX (PRIMARY)
  LEFT JOIN {t} AS g FORCE INDEX (guard)
    ON g.token = IF(p.mode = 0 AND p.owner <> {owner} AND {>available}, p.token, NULL) AND g.name = p.name
  WHERE p.name = {name} AND @@autocommit
  LIMIT 1 FOR UPDATE {skip}
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.token = IF(mine.taken,
    LAST_INSERT_ID(GREATEST(l.token + 256, {>now_micros})),
    l.token + 0 * LAST_INSERT_ID(IF(mine.granted, CAST(l.token AS SIGNED), IF(mine.claimed, -2305843009213693952, mine.refusal)))),
  l.owner = IF(mine.taken OR mine.claimed, {owner}, l.owner),
  l.holder = IF(mine.taken OR mine.claimed, {label}, l.holder),
  l.holds = IF(mine.taken OR mine.claimed, 1, l.holds),
  l.acquired_at = IF(mine.taken OR mine.claimed, {>now}, l.acquired_at),
  l.session = IF(mine.taken OR mine.claimed, 0, l.session),
  l.waiters = IF(mine.claimed AND NOT mine.listed AND LENGTH(mine.rest) <= 1000, CONCAT({enlist}, mine.rest),
    IF(mine.taken OR mine.claimed OR mine.granted, mine.rest, mine.waiters)),
  l.expires_at = IF(mine.taken, {>new_lease},
    IF(mine.claimed, GREATEST(l.expires_at, {>now} + INTERVAL {claimLease} MICROSECOND),
      IF(mine.granted, GREATEST(l.expires_at, {>new_lease}), l.expires_at)))
