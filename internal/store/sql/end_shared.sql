-- Ends a shared hold whose lease has expired, so that its owner can no longer extend it. If the row is
-- bound to the session {id}, that is dead, too.
--
-- | row                                   | written                         | answer |
-- |---------------------------------------|---------------------------------|--------|
-- | owned by {owner}, bound to {id}, over | freed, its owner id as by force | 1      |
-- | renewed, or bound to another session  | nothing                         | 0      |
-- | owned by another, missing, or locked  | nothing                         | 0      |
-- | any, while autocommit is off          | nothing                         | 0      |
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT name FROM {t} FORCE INDEX (PRIMARY)
  WHERE name = {name} AND owner = {owner} AND session = {id} AND expires_at <= {>now} AND @@autocommit
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.owner = INSERT(l.owner, 1, 1, _ascii'!'),
  l.holds = 0 * LAST_INSERT_ID(1),
  l.released_at = {>now},
  l.session = 0
