-- The library's own reads, and the locks of Guard, end with their context, not by a time limit meant
-- for queries of the application. The first comment is for MariaDB, the second for MySQL. Only
-- granted goes without, because it delays a handoff.
/*M! SET STATEMENT max_statement_time = 60 FOR */ SELECT /*+ MAX_EXECUTION_TIME(60000) */
