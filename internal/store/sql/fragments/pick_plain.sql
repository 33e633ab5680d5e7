-- Picks and locks the rows {name} that a batch may take. An owner id in {owners} belongs to one of
-- the names, or to all. i is the position of the row in {name}, if anything depends on it. Rows
-- granted to a copy come last, so that the answer of take_all is theirs if there are any.
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
