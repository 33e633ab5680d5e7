-- Reads, without a lock, what became of the rows of a batch. micros is what is left of the row's own
-- lease.
--
-- | row                           | owner         | micros    |
-- |-------------------------------|---------------|-----------|
-- | taken by the batch            | of its claim  |           |
-- | another holder's lease runs   | another       | positive  |
-- | any other that was not taken  | another       | 0 or less |
-- | missing                       | no result     |           |
{>select_unlimited}
  CAST(name AS BINARY) AS name,
  CAST(owner AS BINARY) AS owner,
  token + 0 AS token,
  TIMESTAMPDIFF(MICROSECOND, {>now}, expires_at) AS micros
FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) LIMIT {count}
