-- Keeps the listener's connection out of the slow query log, because a sleeping listener is not a slow
-- query. On MySQL, slow_query_log is only global, so the comment in the statement is for MariaDB alone.
--
-- | server  | effect                                          |
-- |---------|-------------------------------------------------|
-- | MariaDB | no slow query log; a query is slow after a year |
-- | MySQL   | a query is slow after a year                    |
SET SESSION /*M! slow_query_log = 0, */ long_query_time = 31536000
