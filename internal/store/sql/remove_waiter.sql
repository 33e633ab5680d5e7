-- Removes all ids of a process from the wait queues of rows. It picks the rows in the way of pick_owned.
--
-- | row                                        | written                       | answer                 |
-- |--------------------------------------------|-------------------------------|------------------------|
-- | free, and the process is at its head       | the queue without the process | the next process, or 0 |
-- | a semaphore's, and the process is its head | the queue without the process | the next process, or 0 |
-- | any other with the process in its queue    | the queue without the process | 0                      |
-- | locked, or the process is not in its queue | nothing                       | 0                      |
-- | any, while autocommit is off               | nothing                       | 0                      |
--
-- The key of the wait queue of a semaphore ends in x'0073'. Its row does not show whether slots are free.
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT name FROM {t} FORCE INDEX (PRIMARY)
  WHERE name IN ({names}) AND (LOCATE({process}, waiters) > 0 OR LOCATE({pollingID}, waiters) > 0 OR LOCATE({directID}, waiters) > 0) AND @@autocommit
  LIMIT {count} FOR UPDATE SKIP LOCKED
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  {r}holds = {r}holds + IF(({r}expires_at <= {>now} AND {r}session = 0 OR RIGHT({r}name, 2) = x'0073') AND LENGTH({r}waiters) > 19
      AND {>head} IN ({process}, {pollingID}, {directID}),
    0 * LAST_INSERT_ID(SUBSTRING({r}waiters, 20, 19)), 0),
  {r}waiters = REPLACE(REPLACE(REPLACE({r}waiters, {process}, x''), {pollingID}, x''), {directID}, x'')
