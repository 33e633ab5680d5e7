-- Reads, without a lock, the rows of sessions after {name} that have been dead for {idle}.
--
-- | row after {name}                          | found |
-- |-------------------------------------------|-------|
-- | a session that expired before {idle}      | yes   |
-- | a session marked by force within {idle}   | no    |
-- | a session that is alive, or expired later | no    |
-- | a lock                                    | no    |
{>select_unlimited} CAST(l.name AS BINARY) AS name FROM {t} AS l FORCE INDEX (PRIMARY)
WHERE l.name BETWEEN x'00' AND x'01' AND l.name > {name} AND {>idle_since}
ORDER BY l.name LIMIT {count}
