-- The rows {name}, one or several, with their entries in the guard index. FOR UPDATE SKIP LOCKED locks
-- both, and skips both if either is already locked.
--
-- | row    | its entry in the guard index | found |
-- |--------|------------------------------|-------|
-- | free   | free                         | yes   |
-- | locked |                              | no    |
-- | free   | locked, by a guard           | no    |
{t} AS p FORCE INDEX (PRIMARY)
STRAIGHT_JOIN {t} AS g FORCE INDEX (guard) ON g.token = p.token AND g.name = p.name
WHERE p.name IN ({name})
