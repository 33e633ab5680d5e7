-- Reads, without a lock, the rows of sessions after {name} that have been dead for {idle}.
--
-- | row after {name}                          | found |
-- |-------------------------------------------|-------|
-- | a session that expired before {idle}      | yes   |
-- | a session marked by force within {idle}   | no    |
-- | a session that is alive, or expired later | no    |
-- | a lock                                    | no    |
{>select_unlimited} CAST(name AS BINARY) AS name FROM {t} FORCE INDEX (PRIMARY)
WHERE name BETWEEN x'00' AND x'01' AND name > {name} AND {>idle_since}
ORDER BY {t}.name LIMIT {count}
