-- Picks and locks those of the rows {name} that a batch may take. {owners} has an owner id for each name,
-- or one for all. i is the position of the row in {name}, if anything depends on it. Rows granted to a
-- copy come last, so that take_all answers for one of them if there are any.
--
-- | row                                          | picked |
-- |----------------------------------------------|--------|
-- | plain, and not locked                        | yes    |
-- | granted to a copy of this statement          | yes    |
-- | not plain, or missing                        | no     |
-- | locked, or its entry in the guard index      | no     |
-- | any, while autocommit is off                 | no     |
SELECT p.name, p.token, p.owner IN ({owners}) AS copied, {i} AS i FROM {>unlocked}
  AND ({plain} OR p.owner IN ({owners})) AND @@autocommit
ORDER BY copied LIMIT {count} FOR UPDATE SKIP LOCKED
