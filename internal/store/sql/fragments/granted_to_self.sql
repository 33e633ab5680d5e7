-- Whether a release has recently granted the row to this process.
--
-- | owner id                | granted recently | to this process |
-- |-------------------------|------------------|-----------------|
-- | of this process, with = | yes              | yes             |
-- | of this process, with = | no               | no              |
-- | any other               |                  | no              |
--
-- The id of this process begins with 5 or 6: see granted_recently.
(LEFT({r}owner, 20) = CONCAT({self}, _ascii'=') AND {>acquired_recently})
