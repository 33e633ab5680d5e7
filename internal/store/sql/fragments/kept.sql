-- Rows as l, each joined with the session s that keeps it.
--
-- | session of l                             | s       |
-- |------------------------------------------|---------|
-- | 0                                        | NULL    |
-- | expired, replaced by a later, or deleted | NULL    |
-- | alive                                    | its row |
{t} AS l FORCE INDEX (PRIMARY)
LEFT JOIN {t} AS s FORCE INDEX (PRIMARY)
  ON l.session <> 0 AND s.name = CONCAT(x'00', CAST(LEFT(l.owner, 19) AS BINARY))
  AND s.session = l.session AND s.expires_at > {>now}
