-- The beginning of an UPDATE of the rows, as l, that claims of this process own. The derived table picks
-- and locks the rows, and skips those that are locked. Without the LIMIT, MySQL would merge it. Without
-- FORCE INDEX, both servers would scan and lock the whole of a small table. {owned} has each name followed
-- by its owner id, because the claims of a batch of acquires have the same owner id, so the owner id alone
-- does not identify a claim.
--
-- | row                            | picked |
-- |--------------------------------|--------|
-- | owned by its claim             | yes    |
-- | owned by the claim of another  | no     |
-- | owned by another owner         | no     |
-- | locked                         | no     |
-- | any, while autocommit is off   | no     |
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT name FROM {t} FORCE INDEX (PRIMARY)
  WHERE name IN ({names}) AND CONCAT(name, owner) IN ({owned}) AND @@autocommit
  LIMIT {count} FOR UPDATE SKIP LOCKED
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
