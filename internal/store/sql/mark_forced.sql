-- Records in the session row of a process that one of its locks is freed by force. The recorded time
-- always changes, which the process notices.
--
-- | row {keeper}                                         | written: released_at |
-- |------------------------------------------------------|----------------------|
-- | missing                                              | now                  |
-- | last recorded before now                             | now                  |
-- | last recorded now, or later (the clock was set back) | a microsecond later  |
-- | any, while autocommit is off                         | nothing              |
--
-- With autocommit off, the statement would leave the session's row locked. The token is as in
-- begin_session.
INSERT INTO {t} (name, token, released_at)
SELECT {keeper}, {process}, {>now} FROM (SELECT @@autocommit AS trusted) AS s WHERE s.trusted
ON DUPLICATE KEY UPDATE released_at = GREATEST({>now}, {t}.released_at + INTERVAL 1 MICROSECOND)
