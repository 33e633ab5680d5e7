-- Notes in the session's row of a process that one of its locks is freed by force. The time
-- always changes, which the process notices.
--
-- | row {keeper}                                      | written: released_at |
-- |---------------------------------------------------|----------------------|
-- | missing                                           | now                  |
-- | last noted before now                             | now                  |
-- | last noted now, or later (the clock was set back) | a microsecond later  |
INSERT INTO {t} (name, released_at) VALUES ({keeper}, {>now})
ON DUPLICATE KEY UPDATE released_at = GREATEST({>now}, released_at + INTERVAL 1 MICROSECOND)
