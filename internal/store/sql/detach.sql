-- Makes a ticket the owner of a row: an owner id that no process has, and that one process may replace.
-- {age} is 0 if a statement acquired the row for the hold; otherwise, as after a handoff, the microseconds
-- since the hold began. {skip} is empty, or SKIP LOCKED.
--
-- | row                                        | written                                    | answer                       |
-- |--------------------------------------------|--------------------------------------------|------------------------------|
-- | owned by {owner}                           | {ticket}, bound to no session, the new end | head of the wait queue, or 1 |
-- | of {ticket}, by a copy, and its lease runs | the later end                              | head of the wait queue, or 1 |
-- | of {ticket}, and its lease has ended       | nothing                                    | 0                            |
-- | another owner's, or missing                | nothing                                    | 0                            |
-- | locked, with SKIP LOCKED                   | nothing                                    | 0                            |
-- | any, while autocommit is off               | nothing                                    | 0                            |
--
-- The head of the wait queue is signalled, and learns how long the row stays taken. A row that a
-- release has granted gets the label of this process. An UPDATE of two tables may assign in any order,
-- so values that depend on owner come from mine.
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT name, owner = {ticket} AS copied
  FROM {t} FORCE INDEX (PRIMARY)
  WHERE name = {name} AND (owner = {owner} OR owner = {ticket} AND expires_at > {>now}) AND @@autocommit
  LIMIT 1 FOR UPDATE {skip}
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.holds = 0 * LAST_INSERT_ID(IF({r}waiters = x'', 1, {>head})),
  l.acquired_at = IF(mine.copied OR {age} = 0, l.acquired_at, GREATEST(l.acquired_at, {>now} - INTERVAL {age} MICROSECOND)),
  l.session = 0,
  l.holder = IF(l.holder = x'', {label}, l.holder),
  l.owner = {ticket},
  l.expires_at = IF(mine.copied, GREATEST(l.expires_at, {>new_lease}), {>new_lease})
