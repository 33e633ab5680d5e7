-- Reads, without a lock, the next names after {name} that may be held shared, but to which no request
-- was admitted within {idle}.
--
-- | row after {name}                   | found |
-- |------------------------------------|-------|
-- | of mode 1 or 2, free, idle         | yes   |
-- | the same, claimed or used recently | no    |
-- | of mode 0                          | no    |
{>select_unlimited} CAST(l.name AS BINARY) AS name FROM {t} AS l FORCE INDEX (PRIMARY)
WHERE l.name > {name} AND l.mode <> 0 AND {>idle_since}
ORDER BY l.name LIMIT {count}
