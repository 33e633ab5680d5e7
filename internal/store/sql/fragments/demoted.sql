-- Whether the server is read-only. A demoted primary refuses writes, but a connection that only reads
-- would never notice, and would read outdated rows. The variable is a number or, from MariaDB 12 on, a
-- word.
--
-- | @@global.read_only  | demoted |
-- |---------------------|---------|
-- | 0, OFF              | 0       |
-- | 1, ON, and the like | 1       |
CAST(@@global.read_only AS CHAR) NOT IN (_ascii'0', _ascii'OFF')
