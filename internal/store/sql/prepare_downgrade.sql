-- Records in the mode of a name that its exclusive holder may also have the row of a shared hold. If the
-- holder crashes before downgrade, the next exclusive request then looks for that row. {skip} is empty,
-- or SKIP LOCKED.
--
-- | row                                      | written | answer |
-- |------------------------------------------|---------|--------|
-- | held by {owner}                          | mode 2  | 1      |
-- | owned by another, claimed, or missing    | nothing | 0      |
-- | locked, with SKIP LOCKED                 | nothing | 0      |
-- | any, while autocommit is off             | nothing | 0      |
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT name FROM {t} FORCE INDEX (PRIMARY)
  WHERE name = {name} AND owner = {owner} AND mode <> 1 AND @@autocommit
  LIMIT 1 FOR UPDATE {skip}
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET l.mode = 2, l.holds = l.holds + 0 * LAST_INSERT_ID(1)
