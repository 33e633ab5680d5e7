-- A read that is repeated if it has no reply: see select_unlimited and brief_wait.
/*M! SET STATEMENT max_statement_time = 60 FOR */ SELECT /*+ MAX_EXECUTION_TIME(60000) SET_VAR(lock_wait_timeout = 2) */
