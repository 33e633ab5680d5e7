-- Reads, without a lock, whether a session of this process is alive.
--
-- | session                     | alive |
-- |-----------------------------|-------|
-- | not expired                 | 1     |
-- | expired, ended, or replaced | 0     |
{>select_brief} COUNT(*) > 0 AS alive FROM {t} FORCE INDEX (PRIMARY) WHERE {>alive}
