-- Reads the rows that a session of this process keeps.
--
-- | row                          | read |
-- |------------------------------|------|
-- | a lock that is bound to {id} | yes  |
-- | any other, and the session   | no   |
{>select_brief} CAST(name AS BINARY) AS name, CAST(owner AS BINARY) AS owner FROM {t} FORCE INDEX (session)
WHERE session = {id} AND name > x'01' LIMIT 18446744073709551615
