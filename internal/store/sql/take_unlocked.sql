-- Takes a row without waiting for a lock on it. It is for callers without a slot in rowWaits, whose
-- statements must not wait for a row.
--
-- | row                                     | written                                            | answer        |
-- |-----------------------------------------|----------------------------------------------------|---------------|
-- | {available}, and not locked             | the grant, bound to no session                     | the token     |
-- | granted to a copy of this statement     | the grant, again; still bound; the later lease end | the token     |
-- | not available, or missing               | nothing                                            | 0             |
-- | locked, or its entry in the guard index | nothing                                            | 0             |
-- | any, while autocommit is off            | nothing                                            | 0             |
--
-- If the answer is 0, why_refused finds out why.
{>no_safe_updates} UPDATE {>brief_wait} (
  SELECT p.name, p.owner = {owner} AS copied FROM {>unlocked} AND {available} AND @@autocommit
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.holder = {label},
  l.holds = 1,
  l.acquired_at = {>now},
  l.waiters = {waiters},
  l.token = LAST_INSERT_ID(IF(mine.copied, l.token, GREATEST(l.token + 256, {>now_micros}))),
  l.owner = {owner},
  l.expires_at = IF(mine.copied, GREATEST(l.expires_at, {>new_lease}), {>new_lease}),
  l.session = IF(mine.copied, l.session, 0)
