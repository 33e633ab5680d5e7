-- Checks the rows, and sleeps if none of them needs attention. One statement does both, so that no
-- signal can arrive in between. A signal ends the sleep early, or makes the statement fail.
--
-- | state                                                            | hit      | ended     |
-- |------------------------------------------------------------------|----------|-----------|
-- | a row is missing                                                 | empty    | 0         |
-- | a row is available, or its queue has room and lacks this process | its name | 0         |
-- | a release has granted a row to this process                      | its name | 0         |
-- | a semaphore has a slot that this process may take                | its name | 0         |
-- | a name that this process has claimed is not held shared any more | its name | 0         |
-- | the server is read-only, or limits its threads: see limited      |          | 0         |
-- | a lock of this process was freed by force                        |          | 0         |
-- | none of these: it sleeps                                         | NULL     | {>sleep}  |
{>select_brief}
  CAST(a.hit AS BINARY) AS hit,
  a.demoted + 0 AS demoted,
  {>limited} AS limited,
  a.forced + 0 AS forced,
  IF(a.hit IS NULL AND NOT a.demoted AND NOT {>limited} AND a.forced = {forced}, {>sleep}, 0) AS ended
FROM (
  SELECT
    {>demoted} AS demoted,
    (SELECT COALESCE(MAX({>forced_at}), 0) FROM {t} AS p WHERE p.name = {session}) AS forced,
    IF(COUNT(*) < {count}, x'', MIN(
      IF(l.expires_at <= {>now} AND s.name IS NULL AND {>not_reserved} OR {>granted_to_self}
        OR NOT {>listed} AND LENGTH(l.waiters) <= 1000{more}, l.name, NULL))) AS hit
  FROM {>kept}
  WHERE l.name IN ({names})
) AS a
