-- Takes a name that has no row yet.
--
-- | row                          | written                  | answer                             |
-- |------------------------------|--------------------------|------------------------------------|
-- | missing                      | the row, with the grant  | a token above all that were purged |
-- | added meanwhile              | as in set_take_or_enlist | as in set_take_or_enlist           |
-- | any, while autocommit is off | nothing                  | 0                                  |
--
-- The shared lock on the high-water row makes this statement and Purge wait for each other. Otherwise
-- the new token could be below one that Purge deletes meanwhile. The name of the alias contains a
-- space, so that it differs from every valid {t}.
INSERT {>brief_wait} INTO {t} (name, owner, holder, holds, token, acquired_at, expires_at)
SELECT {name}, {owner}, {label}, 1,
  LAST_INSERT_ID(GREATEST(COALESCE(`high water`.token, 0) + 256, {>now_micros})),
  {>now}, {>new_lease}
FROM (SELECT @@autocommit AS trusted) AS s
LEFT JOIN {t} AS `high water` ON `high water`.name = x''
WHERE s.trusted
LOCK IN SHARE MODE
ON DUPLICATE KEY UPDATE
  {>set_take_or_enlist}
