-- Does nothing, but its reply carries the status flags of the connection.
--
-- | connection             | flag of a transaction |
-- |------------------------|-----------------------|
-- | a transaction is open  | 1                     |
-- | no transaction is open | 0                     |
DO 0
