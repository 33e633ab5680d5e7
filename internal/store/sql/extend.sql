-- Extends one lease, and waits while a transaction has the row locked. {bind} is empty, or
-- assigns the session. A row that a release has granted gets the label of this process.
--
-- | row                          | written                                       | answer |
-- |------------------------------|-----------------------------------------------|--------|
-- | owned by {owner}             | holds, session, the lease unless it is longer | 1      |
-- | another owner's, or missing  | nothing                                       | 0      |
-- | any, while autocommit is off | nothing                                       | 0      |
UPDATE {>brief_wait} {t} SET
  {bind}holds = {holds},
  holder = IF(holder = x'', {label}, holder),
  token = token + 0 * LAST_INSERT_ID(1),
  expires_at = GREATEST(expires_at, {>new_lease})
WHERE name = {name} AND owner = {owner} AND @@autocommit
