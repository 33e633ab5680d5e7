-- Deletes rows, skipping locked ones. A plain DELETE of many names would scan the whole table, and wait
-- for every locked row. A DELETE by an alias would need a default database. The name of the derived
-- table contains a space, so that it differs from every valid {t}.
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
