-- Makes the next statement read uncommitted data, too. It applies to the next transaction, which is the
-- next statement.
--
-- | connection             | answer     |
-- |------------------------|------------|
-- | no transaction is open | done       |
-- | a transaction is open  | error 1568 |
SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED
