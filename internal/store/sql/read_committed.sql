-- Makes the next statement read what is committed. It applies to the next transaction, which
-- is the next statement.
--
-- | connection             | answer     |
-- |------------------------|------------|
-- | no transaction is open | done       |
-- | a transaction is open  | error 1568 |
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
