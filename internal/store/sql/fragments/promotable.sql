-- Whether this process has claimed the name of the row l, and no shared hold of the name is left.
--
-- | row l                     | row of a shared hold                 | own lease | promotable |
-- |---------------------------|--------------------------------------|-----------|------------|
-- | not claimed by it         |                                      |           | no         |
-- | claimed by this process   | released, or ended by force or claim | has ended | yes        |
-- | claimed by this process   | kept for a minimum time              | runs      | no         |
-- | claimed by this process   | owned: the owner may extend it       |           | no         |
l.mode <> 0 AND LEFT(l.owner, 19) = {self} AND NOT EXISTS (
  SELECT q.name FROM {t} AS q FORCE INDEX (PRIMARY)
  WHERE q.name > {first} AND q.name < {last} AND (q.owner >= _ascii'0' OR q.expires_at > {>now})
)
