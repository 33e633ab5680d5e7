-- Reads, without a lock, the session {id}, which may keep the row of another process held.
--
-- | row                           | session           | name      | micros    |
-- |-------------------------------|-------------------|-----------|-----------|
-- | bound to {id}                 | alive             | its row   | positive  |
-- | bound to {id}                 | expired           | its row   | 0 or less |
-- | bound to {id}                 | replaced, deleted | empty     | 0         |
-- | not bound to {id}, or missing |                   | no result |           |
{>select_brief}
  CAST(COALESCE(s.name, x'') AS BINARY) AS name,
  COALESCE(TIMESTAMPDIFF(MICROSECOND, {>now}, s.expires_at), 0) AS micros
FROM {t} AS l FORCE INDEX (PRIMARY)
LEFT JOIN {t} AS s FORCE INDEX (PRIMARY)
  ON s.name = CONCAT(x'00', CAST(LEFT(l.owner, 19) AS BINARY)) AND s.session = l.session
WHERE l.name = {name} AND l.session = {id} LIMIT 1
