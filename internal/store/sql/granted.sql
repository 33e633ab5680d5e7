-- Reads, without a lock, which of the rows releases have recently granted to this process. It runs on the
-- listener's connection after a signal has arrived there, so it reads from the server that made the
-- grant. It is short, because it delays the handoff.
--
-- | row                              | result                                     |
-- |----------------------------------|--------------------------------------------|
-- | granted recently to this process | owner id, token, what is left of the lease |
-- | any other, or missing            | none                                       |
SELECT
  CAST(name AS BINARY) AS name,
  CAST(owner AS BINARY) AS owner,
  token + 0 AS token,
  TIMESTAMPDIFF(MICROSECOND, {>now}, expires_at) AS micros
FROM {t} FORCE INDEX (PRIMARY)
WHERE name IN ({names}) AND {>granted_to_self} LIMIT {count}
