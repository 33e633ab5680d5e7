-- Sets a savepoint, to find out by release_savepoint whether a transaction is open.
--
-- | connection             | effect                                 |
-- |------------------------|----------------------------------------|
-- | a transaction is open  | it has the savepoint                   |
-- | no transaction is open | the savepoint ends with this statement |
SAVEPOINT mysqllock_guard
