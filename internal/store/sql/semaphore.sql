-- Reads rows of a semaphore, without a lock. Each result row has 32 slots as the bits of a word, the
-- lowest slot first. With 64 slots, MariaDB would mistake the highest bit for a sign.
--
-- | slot                                      | present | live | open |
-- |-------------------------------------------|---------|------|------|
-- | has no row, or was not read               | 0       | 0    | 0    |
-- | held, by its own lease or a session       | 1       | 1    | 0    |
-- | free, but reserved for another that waits | 1       | 0    | 0    |
-- | free, and not reserved for another        | 1       | 0    | 1    |
-- | 0: the row of the wait queue              | 1       | 0    | 0    |
--
-- until is the number of microseconds until the first of the live slots may be free. beyond is set if a
-- slot above the limit was used within the last hour, so another process has a higher limit. The other
-- columns describe the wait queue, as in look.
{>select_brief}
  r.slot DIV 32 AS word,
  BIT_OR(1 << (r.slot & 31)) AS present,
  BIT_OR(IF(r.until > {>now} AND r.slot > 0, 1 << (r.slot & 31), 0)) AS live,
  BIT_OR(IF(r.until <= {>now} AND r.slot > 0 AND {>not_reserved}, 1 << (r.slot & 31), 0)) AS open,
  COALESCE(TIMESTAMPDIFF(MICROSECOND, {>now}, MIN(IF(r.until > {>now} AND r.slot > 0, r.until, NULL))), 0) AS until,
  MAX(r.slot > {permits} AND GREATEST(r.until, r.released_at) > {>now} - INTERVAL 1 HOUR) AS beyond,
  MAX(IF(r.waiters = x'', 0, CAST({>head} AS UNSIGNED))) AS next,
  MAX({>listed}) AS listed,
  MAX(LENGTH(r.waiters) > 1000) AS full,
  MAX({>demoted}) AS demoted
FROM {>slots}
GROUP BY word
