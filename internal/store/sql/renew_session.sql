-- Renews the session of this process, without waiting for its row.
--
-- | session                      | written                           | answer                                       |
-- |------------------------------|-----------------------------------|----------------------------------------------|
-- | alive                        | the later of the old and new ends | bit 62; 31 bits for the server; {>forced_at} |
-- | alive, its row locked        | nothing                           | 0                                            |
-- | expired, ended, or replaced  | nothing                           | 0                                            |
-- | any, while autocommit is off | nothing                           | 0                                            |
--
-- An expired session stays dead: another process may have taken one of its locks.
-- is_alive distinguishes a locked row from a dead session.
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT name FROM {t} FORCE INDEX (PRIMARY)
  WHERE {>alive} AND @@autocommit LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine
STRAIGHT_JOIN {t} AS p FORCE INDEX (PRIMARY) ON p.name = mine.name
SET
  p.holds = p.holds + 0 * LAST_INSERT_ID(4611686018427387904 | (@@global.server_id & 2147483647) << 31 | {>forced_at}),
  p.expires_at = GREATEST(p.expires_at, {>new_lease})
