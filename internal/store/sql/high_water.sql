-- Reads and locks the high-water row in a transaction of Purge. First grants of names then wait.
--
-- | high-water row | result                       |
-- |----------------|------------------------------|
-- | there          | its token; the row is locked |
-- | missing        | no row                       |
{>select_unlimited} token + 0 AS token FROM {t} WHERE name = x'' LIMIT 1 FOR UPDATE
