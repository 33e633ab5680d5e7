-- Picks and locks the rows {name} that a batch may take.
--
-- | row                                          | picked |
-- |----------------------------------------------|--------|
-- | plain, and not locked                        | yes    |
-- | granted to a copy of this statement          | yes    |
-- | not plain, or missing                        | no     |
-- | locked, or its entry in the guard index      | no     |
-- | any, while autocommit is off                 | no     |
SELECT p.name, p.token, p.owner = {owner} AS copied FROM {>unlocked} AND ({plain} OR p.owner = {owner}) AND @@autocommit
LIMIT {count} FOR UPDATE SKIP LOCKED
