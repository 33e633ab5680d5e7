-- Begins a session of this process. A session begins only once, and only if its number is above those
-- of all earlier sessions of the process. So a duplicate that arrives late changes nothing.
--
-- | row of the process's session    | written        | answer |
-- |---------------------------------|----------------|--------|
-- | missing                         | the session    | {id}   |
-- | of an earlier session           | the session    | {id}   |
-- | of {id}, alive: begun by a copy | a later end    | {id}   |
-- | of {id}, expired                | only the label | 1      |
-- | of a later session              | only the label | 1      |
-- | any, while autocommit is off    | nothing        | 0      |
--
-- The token is the id of the process, which is above the tokens of all locks. On MariaDB, the guard of
-- the lowest token also locks the gap below it, and a new index entry in that gap would wait for it.
INSERT {>brief_wait} INTO {t} (name, holder, token, session, expires_at)
SELECT {session}, {label}, {process}, LAST_INSERT_ID({id}), {>new_lease}
FROM (SELECT @@autocommit AS trusted) AS s WHERE s.trusted
ON DUPLICATE KEY UPDATE
  holder = {label},
  expires_at = IF({>session_begins}, GREATEST({t}.expires_at, {>new_lease}), {t}.expires_at),
  session = IF({>session_begins}, {id}, {t}.session + 0 * LAST_INSERT_ID(1))
