-- Renews the session of this process, without waiting for its row.
--
-- | session                      | written                           | answer                   |
-- |------------------------------|-----------------------------------|--------------------------|
-- | alive                        | a later end, unless it is earlier | {>forced_at}, at least 1 |
-- | alive, its row locked        | nothing                           | 0                        |
-- | expired, ended, or replaced  | nothing                           | 0                        |
-- | any, while autocommit is off | nothing                           | 0                        |
--
-- is_alive distinguishes a locked row from a dead session.
{>no_safe_updates} UPDATE (
  SELECT name FROM {t} FORCE INDEX (PRIMARY)
  WHERE {>alive} AND @@autocommit LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine
STRAIGHT_JOIN {t} AS p FORCE INDEX (PRIMARY) ON p.name = mine.name
SET
  p.holds = p.holds + 0 * LAST_INSERT_ID(GREATEST(1, {>forced_at})),
  p.expires_at = GREATEST(p.expires_at, {>new_lease})
