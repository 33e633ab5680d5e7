-- Ends an exclusive hold, and opens a shared phase of the name. The phase has {token}, which the owner's
-- shared hold already has. {skip} is empty, or SKIP LOCKED.
--
-- | row                                     | written                      | answer                         |
-- |-----------------------------------------|------------------------------|--------------------------------|
-- | owned by {owner}, of mode 2             | {admitted}, mode 1, {token}  | head of the wait queue, or 1   |
-- | the same, by a copy of this statement   | the same, again              | head of the wait queue, or 1   |
-- | owned by another, or missing            | nothing                      | 0                              |
-- | its entry in the guard index is locked  | nothing                      | 0                              |
-- | locked, with SKIP LOCKED                | nothing                      | 0                              |
-- | any, while autocommit is off            | nothing                      | 0                              |
--
-- It waits for no guard: until it succeeds, the hold stays exclusive.
{>no_safe_updates} UPDATE {>no_rewrite} (
  SELECT p.name, p.mode = 1 OR NOT {>guarded} AS ready
  FROM {t} AS p FORCE INDEX (PRIMARY)
  WHERE p.name = {name} AND (p.mode = 2 AND p.owner = {owner} OR p.mode = 1 AND p.owner = {admitted}) AND @@autocommit
  LIMIT 1 FOR UPDATE {skip}
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name AND mine.ready
SET
  l.token = GREATEST(l.token, {token}),
  l.mode = 1,
  l.owner = {admitted},
  l.holds = 0 * LAST_INSERT_ID(IF({r}waiters = x'', 1, {>head})),
  l.session = 0,
  l.expires_at = '1970-01-01',
  l.released_at = {>now}
