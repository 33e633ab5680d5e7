-- Whether a release has granted the row to the process that its owner id names, which may not know
-- it yet: the lease of that grant (GrantLease) still runs.
--
-- | owner id | acquired            | granted lately |
-- |----------|---------------------|----------------|
-- | with =   | within the last 4 s | yes            |
-- | with =   | earlier             | no             |
-- | with -   |                     | no             |
(SUBSTRING({r}owner, 20, 1) = _ascii'=' AND {r}acquired_at > {>now} - INTERVAL 4000000 MICROSECOND)
