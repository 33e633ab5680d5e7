-- Ends a session of this process at once.
--
-- | row of the process's session   | written         |
-- |--------------------------------|-----------------|
-- | of {id}                        | an end long ago |
-- | of another session, or missing | nothing         |
-- | any, while autocommit is off   | nothing         |
UPDATE {>brief_wait} {t} SET expires_at = '1970-01-01' WHERE name = {session} AND session = {id} AND @@autocommit
