-- Begins a transaction that may write, whatever the session's transaction_read_only.
--
-- | connection             | effect                          |
-- |------------------------|---------------------------------|
-- | no transaction is open | one begins                      |
-- | a transaction is open  | it is committed, and one begins |
START TRANSACTION READ WRITE
