-- Begins a session of this process. A session begins once, and only after every earlier one of
-- its process: a duplicate that arrives late changes nothing.
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
-- The token is the process, above those of all locks: on MariaDB, a guard of the lowest token
-- has the gap below it locked, and an index entry there would wait for it.
INSERT INTO {t} (name, holder, token, session, expires_at)
SELECT {session}, {label}, {process}, LAST_INSERT_ID({id}), {>new_lease}
FROM (SELECT @@autocommit AS trusted) AS s WHERE s.trusted
ON DUPLICATE KEY UPDATE
  holder = {label},
  expires_at = IF({>session_begins}, GREATEST({t}.expires_at, {>new_lease}), {t}.expires_at),
  session = IF({>session_begins}, {id}, {t}.session + 0 * LAST_INSERT_ID(1))
