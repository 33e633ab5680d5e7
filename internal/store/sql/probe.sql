-- Reads, without waiting, what blocks the statement of {owner}.
--
-- | row                                                 | held      | unlocked |
-- |-----------------------------------------------------|-----------|----------|
-- | held by another owner, or perhaps kept by a session | 1         |          |
-- | free, or held by {owner}                            | 0         |          |
-- | locked, or its entry in the guard index             |           | 0        |
-- | not locked                                          |           | 1        |
-- | missing                                             | no result |          |
{>select_brief}
  r.owner <> {owner} AND (r.expires_at > {>now} OR r.session NOT IN (0, {dead})) AS held,
  (
    SELECT COUNT(*) FROM (
      SELECT p.name FROM {>unlocked} LIMIT 1 FOR UPDATE SKIP LOCKED
    ) AS u
  ) AS unlocked
FROM {t} AS r FORCE INDEX (PRIMARY) WHERE r.name = {name} LIMIT 1
