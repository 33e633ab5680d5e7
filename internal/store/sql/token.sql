-- Reads the token of a row.
--
-- | row     | result    |
-- |---------|-----------|
-- | there   | its token |
-- | missing | no row    |
{>select_unlimited} token + 0 AS token FROM {t} FORCE INDEX (PRIMARY) WHERE name = {name} LIMIT 1
