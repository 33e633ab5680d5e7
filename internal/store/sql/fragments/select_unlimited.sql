-- The library's own reads, and the locks of Guard, end with their context, and not because of a time limit
-- that is meant for queries of the application. The first comment in the statement is for MariaDB, the
-- second for MySQL. Only the statement granted does without them, to be short, because it delays a handoff.
/*M! SET STATEMENT max_statement_time = 60 FOR */ SELECT /*+ MAX_EXECUTION_TIME(60000) */
