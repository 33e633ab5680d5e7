-- Shares a name that has no row yet: adds the name's row, in a shared phase, and the row {key} of the
-- hold.
--
-- | rows                         | written                          | answer                             |
-- |------------------------------|----------------------------------|------------------------------------|
-- | both missing                 | the rows, as by admit and join   | a token above all that were purged |
-- | one was added meanwhile      | nothing                          | error 1062                         |
-- | any, while autocommit is off | nothing                          | 0                                  |
--
-- The high-water row is locked as in insert.
INSERT {>brief_wait} INTO {t} (name, mode, owner, holder, holds, token, acquired_at, expires_at, released_at)
SELECT
  r.name, r.mode, r.owner, {label}, 1 - r.mode,
  LAST_INSERT_ID(GREATEST(COALESCE(`high water`.token, 0) + 256, {>now_micros})) | IF(r.mode = 1, 0, {>shared_bit}),
  {>now},
  IF(r.mode = 1, TIMESTAMP'1970-01-01 00:00:00', {>new_lease}),
  IF(r.mode = 1, {>now}, TIMESTAMP'1970-01-01 00:00:00')
FROM (SELECT {name} AS name, 1 AS mode, {admitted} AS owner UNION ALL SELECT {key}, 0, {owner}) AS r
LEFT JOIN {t} AS `high water` ON `high water`.name = x''
WHERE @@autocommit
LOCK IN SHARE MODE
