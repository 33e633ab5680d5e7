-- Keeps the listener's connection out of the slow query log: a sleeping listener is no slow
-- query. On MySQL, slow_query_log is global only, so the comment is for MariaDB alone.
--
-- | server  | effect                                          |
-- |---------|-------------------------------------------------|
-- | MariaDB | no slow query log; a query is slow after a year |
-- | MySQL   | a query is slow after a year                    |
SET SESSION /*M! slow_query_log = 0, */ long_query_time = 31536000
