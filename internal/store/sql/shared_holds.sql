-- Reads, without a lock, the shared holds of a name. That includes holds that have expired without a
-- release, because their owners may still extend them.
--
-- | row of a shared hold                           | micros    |
-- |------------------------------------------------|-----------|
-- | held, by its lease or a session                | positive  |
-- | lease and session over, not released           | 0 or less |
-- | released, freed by force, or ended by a claim  | no result |
{>select_brief}
  CAST(l.name AS BINARY) AS name,
  CAST(l.owner AS BINARY) AS owner,
  l.session + 0 AS session,
  TIMESTAMPDIFF(MICROSECOND, {>now}, {>kept_until}) AS micros
FROM {>kept}
WHERE l.name > {first} AND l.name < {last} AND (l.owner >= _ascii'0' OR l.expires_at > {>now})
LIMIT 18446744073709551615
