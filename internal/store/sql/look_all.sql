-- Reads, without a lock, which rows a batch may take.
--
-- | row       | free      |
-- |-----------|-----------|
-- | plain     | 1         |
-- | not plain | 0         |
-- | missing   | no result |
{>select_brief} CAST(p.name AS BINARY) AS name, ({>plain}) + 0 AS free
FROM {t} AS p FORCE INDEX (PRIMARY) WHERE p.name IN ({name}) LIMIT {count}
