-- Marks an expired session of another process as dead, before this process takes one of its rows,
-- because the session must stay dead even if the clock is set back.
--
-- | session {id} in the row {keeper} | written         | answer |
-- |----------------------------------|-----------------|--------|
-- | expired                          | an end long ago | 1      |
-- | alive: the clock was set back    | nothing         | 0      |
-- | replaced, or deleted             | nothing         | 0      |
-- | any, while autocommit is off     | nothing         | 0      |
UPDATE {>brief_wait} {t} SET
  holds = holds + 0 * LAST_INSERT_ID(1),
  expires_at = '1970-01-01'
WHERE name = {keeper} AND session = {id} AND expires_at <= {>now} AND @@autocommit
