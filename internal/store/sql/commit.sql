-- Commits, and leaves no transaction open, whatever the session's completion_type.
--
-- | connection             | effect                         |
-- |------------------------|--------------------------------|
-- | a transaction is open  | committed, and no other begins |
-- | no transaction is open | none                           |
COMMIT AND NO CHAIN NO RELEASE
