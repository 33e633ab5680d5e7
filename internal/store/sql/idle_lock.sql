-- Locks those of the rows found that are still idle, in a transaction of Purge. It uses the guard index,
-- so that it skips rows that a guard has locked. An explicit LIMIT overrides sql_select_limit.
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
