-- The rows {name}, one or several, and their entries in the guard index. With FOR UPDATE SKIP
-- LOCKED, both are locked, and both skipped if either is locked already.
--
-- | row    | its entry in the guard index | found |
-- |--------|------------------------------|-------|
-- | free   | free                         | yes   |
-- | locked |                              | no    |
-- | free   | locked, by a guard           | no    |
{t} AS p FORCE INDEX (PRIMARY)
STRAIGHT_JOIN {t} AS g FORCE INDEX (guard) ON g.token = p.token AND g.name = p.name
WHERE p.name IN ({name})
