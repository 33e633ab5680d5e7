-- Takes the name under which the listener's connection is signalled. That connection holds the
-- name, so a signal reaches it and no other. On MariaDB, it also takes mysqllock:sleeper, if that
-- is free: see sleep.
--
-- | name                       | answer |
-- |----------------------------|--------|
-- | not held                   | 1      |
-- | held by another connection | 0      |
-- | error                      | NULL   |
SELECT GET_LOCK(_ascii'mysqllock:{id}', 0) /*M! + 0 * GET_LOCK(_ascii'mysqllock:sleeper', 0) */
