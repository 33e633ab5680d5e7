-- Reads the row of a name and the rows of its shared holds, for ForceUnlock.
--
-- | row                                       | result       |
-- |-------------------------------------------|--------------|
-- | of the name, held, by a lease or session  | it, held = 1 |
-- | of the name, free                         | it, held = 0 |
-- | of the name, missing                      | no row       |
-- | of a shared hold, held                    | it, held = 1 |
-- | of a shared hold, free                    | no row       |
{>select_unlimited}
  CAST(l.name AS BINARY) AS name,
  CAST(l.owner AS BINARY) AS owner,
  l.mode + 0 AS mode,
  {>fencing_token} AS token,
  (l.expires_at > {>now} OR s.name IS NOT NULL) + 0 AS held
FROM {>kept}
WHERE l.name = {name} OR l.name > {first} AND l.name < {last} AND (l.expires_at > {>now} OR s.name IS NOT NULL)
ORDER BY l.name LIMIT 18446744073709551615
