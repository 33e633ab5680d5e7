-- Resets the mode of a name to 0 if nobody holds it shared any more, so that Purge may delete its row.
-- It also changes the owner id, as force does. Otherwise a process that had claimed the name, and was
-- paused since, would mistake mode 0 for its grant. It may claim the name again, so the id must not look
-- like that of a released claim.
--
-- | row                                | written | answer |
-- |------------------------------------|---------|--------|
-- | idle, not held shared              | mode 0  | 1      |
-- | held shared, or used within {idle} | nothing | 0      |
-- | locked, or missing                 | nothing | 0      |
-- | a shared hold's row is locked      | nothing | error  |
-- | any, while autocommit is off       | nothing | 0      |
{>no_safe_updates} UPDATE {>no_rewrite} (
  SELECT p.name, {>alone} AS alone
  FROM {t} AS p FORCE INDEX (PRIMARY)
  WHERE p.name = {name} AND p.mode <> 0 AND {>idle_since} AND @@autocommit
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.owner = IF(mine.alone, INSERT(l.owner, 1, 1, _ascii'!'), l.owner),
  l.mode = IF(mine.alone, 0, l.mode),
  l.holds = l.holds + 0 * LAST_INSERT_ID(mine.alone)
