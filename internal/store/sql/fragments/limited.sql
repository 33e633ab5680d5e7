-- Whether MySQL limits the number of threads that execute in InnoDB. A statement that has read a row counts
-- as one of them until it ends, even while it sleeps. So if as many processes waited, they would stop the
-- server. MariaDB has no such limit.
(/*!80000 @@global.innodb_thread_concurrency + */ 0 > 0)
