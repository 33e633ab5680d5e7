-- Whether a release has lately granted the row to this process.
--
-- | owner id                | granted lately | to this process |
-- |-------------------------|----------------|-----------------|
-- | of this process, with = | yes            | yes             |
-- | of this process, with = | no             | no              |
-- | any other               |                | no              |
(LEFT({r}owner, 20) = CONCAT({self}, _ascii'=') AND {r}acquired_at > {>now} - INTERVAL 4000000 MICROSECOND)
