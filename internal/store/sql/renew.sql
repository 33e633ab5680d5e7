-- Extends many leases, skipping locked rows. {holds} and {bind} are empty, or assign the
-- number of handles and the session. A late renewal cannot shorten a newer one. A row that a
-- release has granted gets the label of this process.
--
-- | row                                  | written                             | counted     |
-- |--------------------------------------|-------------------------------------|-------------|
-- | picked                               | holds, session, the later lease end | yes         |
-- | picked, with a lease that ends later | holds, session                      | perhaps not |
-- | not picked: see pick_owned           | nothing                             | no          |
{>pick_owned}
SET {holds}{bind}l.holder = IF(l.holder = x'', {label}, l.holder), l.expires_at = GREATEST(l.expires_at, {>new_lease})
