-- Locks the index entry of a token before force changes it. It waits for open guards only at the index
-- entry, so it delays no renewal. Later guards wait behind it, even if its caller has given up, so the
-- server ends it after a second. The first comment in the statement is for MariaDB, the second for
-- MySQL.
--
-- | entry of the token             | result                         |
-- |--------------------------------|--------------------------------|
-- | there, not guarded             | the token; the entry is locked |
-- | guarded for more than a second | error 1205, 1969 or 3024       |
-- | missing: the owner has changed | no row                         |
/*M! SET STATEMENT max_statement_time = 1 FOR */ SELECT /*+ MAX_EXECUTION_TIME(1000) */ token + 0 AS token
FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LIMIT 1 FOR UPDATE
