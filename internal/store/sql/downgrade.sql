-- Ends an exclusive hold, and begins a phase in which the name is held shared, with {token},
-- which is that of the owner's shared hold by now.
--
-- | row                                     | written                      | answer                         |
-- |-----------------------------------------|------------------------------|--------------------------------|
-- | owned by {owner}, of mode 2             | {admitted}, mode 1, {token}  | head of the wait queue, or 1   |
-- | the same, by a copy of this statement   | the same, again              | head of the wait queue, or 1   |
-- | owned by another, or missing            | nothing                      | 0                              |
-- | locked, or its entry in the guard index | nothing                      | 0                              |
-- | any, while autocommit is off            | nothing                      | 0                              |
--
-- It waits for no guard: the exclusive hold goes on meanwhile.
{>no_safe_updates} UPDATE (
  SELECT p.name
  FROM {t} AS p FORCE INDEX (PRIMARY)
  LEFT JOIN {t} AS g FORCE INDEX (guard) ON p.mode = 2 AND g.token = p.token AND g.name = p.name
  WHERE p.name = {name} AND @@autocommit
    AND (p.mode = 2 AND p.owner = {owner} AND g.name IS NOT NULL OR p.mode = 1 AND p.owner = {admitted})
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.token = GREATEST(l.token, {token}),
  l.mode = 1,
  l.owner = {admitted},
  l.holds = 0 * LAST_INSERT_ID(IF({r}waiters = x'', 1, {>head})),
  l.session = 0,
  l.expires_at = '1970-01-01',
  l.released_at = {>now}
