-- Whether a transaction has the row p under Guard. If none has, this locks the index entry of p.
--
-- | entry of p in the guard index | guarded |
-- |-------------------------------|---------|
-- | not locked                    | 0       |
-- | locked                        | 1       |
((
  SELECT g.name FROM {t} AS g FORCE INDEX (guard)
  WHERE g.token = p.token AND g.name = p.name LIMIT 1 FOR UPDATE SKIP LOCKED
) IS NULL)
