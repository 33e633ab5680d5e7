-- Whether a process with the limit {permits} may take a slot. COALESCE is for the case that no slot has a
-- row.
--
-- | live slots          | slots up to the limit                       | open |
-- |---------------------|---------------------------------------------|------|
-- | {permits} or more   |                                             | no   |
-- | fewer               | each is live, or reserved for another       | no   |
-- | fewer               | one has no row, or is free and not reserved | yes  |
COALESCE((
  SELECT SUM(r.slot > 0 AND r.until > {>now}) < {permits}
    AND SUM(r.slot BETWEEN 1 AND {permits} AND (r.until > {>now} OR NOT {>not_reserved})) < {permits}
  FROM {>slots}
), 1)
