-- Makes the next statement read only committed data. It applies to the next transaction, which is the
-- next statement.
--
-- | connection             | answer     |
-- |------------------------|------------|
-- | no transaction is open | done       |
-- | a transaction is open  | error 1568 |
SET TRANSACTION ISOLATION LEVEL READ COMMITTED
