-- Joins the wait queue of a row, without waiting for a lock on the row.
--
-- | row                                    | written                               |
-- |----------------------------------------|---------------------------------------|
-- | its queue has room, and lacks {enlist} | {enlist} at the end of the wait queue |
-- | already listed, or the queue is full   | nothing                               |
-- | granted recently to this process       | nothing                               |
-- | locked, or missing                     | nothing                               |
-- | any, while autocommit is off           | nothing                               |
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT name FROM {t} FORCE INDEX (PRIMARY)
  WHERE name = {name} AND NOT {>listed} AND NOT {>granted_to_self} AND LENGTH(waiters) <= 1000 AND @@autocommit
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET l.waiters = CONCAT(l.waiters, {enlist})
