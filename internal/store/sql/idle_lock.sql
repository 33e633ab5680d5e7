-- Locks, in a transaction of Purge, those of the found rows that are still idle. It uses the
-- guard index, to skip rows that a guard has locked. An explicit LIMIT overrides
-- sql_select_limit.
--
-- | row with one of {tokens}                | result                       |
-- |-----------------------------------------|------------------------------|
-- | still idle                              | name and token; it is locked |
-- | renewed since with the same token       | none                         |
-- | taken since: its token has changed      | none                         |
-- | locked, or its entry in the guard index | none                         |
{>select_unlimited} CAST(name AS BINARY) AS name, token + 0 AS token FROM {t} FORCE INDEX (guard)
WHERE token IN ({tokens}) AND {>idle}
LIMIT 18446744073709551615 FOR UPDATE SKIP LOCKED
