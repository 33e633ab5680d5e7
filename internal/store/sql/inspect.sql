-- Reads the state of one lock, and of each of its shared holds, for operators. The keys of shared holds
-- lie between {first} and {last}.
--
-- | row                                      | micros    |
-- |------------------------------------------|-----------|
-- | the lock, held by its lease or a session | positive  |
-- | the lock, free                           | 0 or less |
-- | a shared hold, likewise held             | positive  |
-- | a shared hold, free                      | no row    |
-- | missing                                  | no row    |
{>select_info}
WHERE l.name = {name} OR l.name > {first} AND l.name < {last} AND (l.expires_at > {>now} OR s.name IS NOT NULL)
ORDER BY l.name LIMIT 18446744073709551615
