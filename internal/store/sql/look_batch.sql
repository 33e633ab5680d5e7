-- Reads, without a lock, the rows of a batch of acquires or of releases, after its statement.
--
-- | row                                | owner           | token  | micros                | released                             | next     |
-- |------------------------------------|-----------------|--------|-----------------------|--------------------------------------|----------|
-- | taken by the batch                 | of its claim    | common |                       |                                      |          |
-- | released by the batch              | its released id |        |                       | since the batch                      | its head |
-- | released by the batch, taken since | another         |        |                       | since the batch                      |          |
-- | held by another before the batch   | another         |        | left of its own lease | before the batch, unless freed since |          |
-- | wait queue empty                   |                 |        |                       |                                      | 0        |
-- | missing                            | no result       |        |                       |                                      |          |
--
-- micros and released, the time since the last release, are in microseconds.
{>select_brief}
  CAST(name AS BINARY) AS name,
  CAST(owner AS BINARY) AS owner,
  token + 0 AS token,
  TIMESTAMPDIFF(MICROSECOND, {>now}, expires_at) AS micros,
  TIMESTAMPDIFF(MICROSECOND, released_at, {>now}) AS released,
  IF(waiters = x'', 0, CAST({>head} AS UNSIGNED)) AS next
FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) LIMIT {count}
