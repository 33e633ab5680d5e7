-- Removes the savepoint that the statement savepoint has set.
--
-- | connection             | answer     |
-- |------------------------|------------|
-- | a transaction is open  | done       |
-- | no transaction is open | error 1305 |
RELEASE SAVEPOINT mysqllock_guard
