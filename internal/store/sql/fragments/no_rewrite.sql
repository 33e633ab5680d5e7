-- Only for MySQL. If optimizer_switch has subquery_to_derived, MySQL turns a subquery with a LIMIT into a
-- derived table, and the statement fails with error 1242. lock_wait_timeout is that of brief_wait.
/*+ SET_VAR(optimizer_switch = 'subquery_to_derived=off') SET_VAR(lock_wait_timeout = 2) */
