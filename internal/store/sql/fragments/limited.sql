-- Whether MySQL limits the number of threads that execute in InnoDB. A statement that has read a row counts
-- as one of them to its end, also while it sleeps. So as many processes that wait would stop the server.
-- MariaDB has no such limit.
(/*!80000 @@global.innodb_thread_concurrency + */ 0 > 0)
