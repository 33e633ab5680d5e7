-- Reads, without a lock, the next names after {name} that may be held shared, but to which no request
-- was admitted within {idle}.
--
-- | row after {name}                   | found |
-- |------------------------------------|-------|
-- | of mode 1 or 2, free, idle         | yes   |
-- | the same, claimed or used recently | no    |
-- | of mode 0                          | no    |
{>select_unlimited} CAST(name AS BINARY) AS name FROM {t} FORCE INDEX (PRIMARY)
WHERE name > {name} AND mode <> 0 AND {>idle_since}
ORDER BY {t}.name LIMIT {count}
