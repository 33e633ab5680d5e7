-- Deletes rows, skipping locked ones. A plain DELETE of many names scans the whole table, and
-- waits for every locked row. Deleting by an alias needs a default database. A table cannot
-- have the name of the derived one, which contains a space.
--
-- | row                                   | deleted |
-- |---------------------------------------|---------|
-- | one of {names}, and {condition} holds | yes     |
-- | {condition} does not hold             | no      |
-- | locked by another transaction         | no      |
{>no_safe_updates} DELETE {t}
FROM (
  SELECT name FROM {t} FORCE INDEX (PRIMARY)
  WHERE name IN ({names}) AND {condition} LIMIT {count} FOR UPDATE SKIP LOCKED
) AS `picked rows`
STRAIGHT_JOIN {t} FORCE INDEX (PRIMARY) ON {t}.name = `picked rows`.name
