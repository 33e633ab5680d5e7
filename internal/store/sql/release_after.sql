-- Ends a hold whose row stays taken for a minimum time: until {held} has passed since it was acquired,
-- or for {left} from now, whichever ends later. If the clock was set back since then, that does not
-- prolong it. {skip} is empty, or SKIP LOCKED.
--
-- | row                                               | written                            | answer                       |
-- |---------------------------------------------------|------------------------------------|------------------------------|
-- | owned by {owner}, the time has not passed         | {kept}, its end; bound to none     | head of the wait queue, or 1 |
-- | owned by {owner}, the time has passed             | freed                              | head of the wait queue, or 1 |
-- | kept by a copy of this statement                  | nothing; freed if the time is over | head of the wait queue, or 1 |
-- | freed by a copy of this statement                 | freed, again                       | head of the wait queue, or 1 |
-- | freed by force, another owner's, or missing       | nothing                            | 0                            |
-- | locked, with SKIP LOCKED                          | nothing                            | 0                            |
-- | any, while autocommit is off                      | nothing                            | 0                            |
--
-- The head of the wait queue must be signalled even if the row stays taken, so that it learns for how
-- long. The first byte of the owner id changes, so that no release or renewal of the claim matches the
-- row. A row that a release has granted gets the label of this process. An UPDATE of two tables may
-- assign in any order, so values that depend on owner come from mine.
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT
    name,
    IF(owner = {owner},
      GREATEST(LEAST(acquired_at, {>now}) + INTERVAL {held} MICROSECOND, {>now} + INTERVAL {left} MICROSECOND),
      expires_at) AS taken_until
  FROM {t} FORCE INDEX (PRIMARY)
  WHERE name = {name} AND owner IN ({owner}, {kept}, {released}) AND @@autocommit
  LIMIT 1 FOR UPDATE {skip}
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.holds = 0 * LAST_INSERT_ID(IF({r}waiters = x'', 1, {>head})),
  l.released_at = IF(mine.taken_until > {>now}, l.released_at, {>now}),
  l.session = 0,
  l.holder = IF(l.holder = x'', {label}, l.holder),
  l.owner = INSERT(l.owner, 1, 1, IF(mine.taken_until > {>now}, _ascii'+', _ascii'-')),
  l.expires_at = IF(mine.taken_until > {>now}, mine.taken_until, TIMESTAMP'1970-01-01 00:00:00')
