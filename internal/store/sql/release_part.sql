-- Frees a shared hold or a permit. The statement waits while a transaction has its row locked, or the
-- row {queue}, which has its wait queue.
--
-- | row                                         | written      | rows | answer                         |
-- |---------------------------------------------|--------------|------|--------------------------------|
-- | owned by {owner}                            | freed        | 1    | head of the wait queue, if any |
-- | freed by a copy of this statement           | freed, again | 1    | head of the wait queue, if any |
-- | freed by force, another owner's, or missing | nothing      | 0    | 0                              |
-- | any, while autocommit is off                | nothing      | 0    | 0                              |
--
-- The lock on {queue} makes a process wait that joins the queue meanwhile; its next read then finds the
-- hold or permit free. Like every statement that locks both rows, this one locks {queue} first, which is
-- why {name} comes from the derived table. The LIMIT prevents MySQL from merging that table.
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT part.name AS name, COALESCE(q.waiters, x'') AS waiters
  FROM (SELECT {name} AS name) AS part
  LEFT JOIN {t} AS q FORCE INDEX (PRIMARY) ON q.name = {queue}
  LIMIT 1 LOCK IN SHARE MODE
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.owner = INSERT(l.owner, 1, 1, _ascii'-'),
  l.holds = IF(mine.waiters = x'', 0, 0 * LAST_INSERT_ID(LEFT(mine.waiters, 19))),
  l.released_at = {>now},
  l.session = 0,
  l.expires_at = '1970-01-01'
WHERE l.owner IN ({owner}, {released}) AND @@autocommit
