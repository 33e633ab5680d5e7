-- Rolls back, and leaves no transaction open, whatever the session's completion_type.
--
-- | connection             | effect                           |
-- |------------------------|----------------------------------|
-- | a transaction is open  | rolled back, and no other begins |
-- | no transaction is open | none                             |
ROLLBACK AND NO CHAIN NO RELEASE
