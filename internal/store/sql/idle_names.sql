-- Reads, without a lock, the next idle locks after {name}, in the order of the primary key.
--
-- | row after {name}            | found |
-- |-----------------------------|-------|
-- | an idle lock                | yes   |
-- | kept by a session           | no    |
-- | held, or used within {idle} | no    |
-- | a session                   | no    |
{>select_unlimited} CAST(l.name AS BINARY) AS name, l.token + 0 AS token
FROM {>kept}
WHERE l.name > {name} AND {>idle} AND s.name IS NULL
ORDER BY l.name LIMIT {count}
