-- Takes a row, or joins its wait queue. This is the general case, in which other processes may wait.
--
-- | row                           | written                               | answer       |
-- |-------------------------------|---------------------------------------|--------------|
-- | available, or already granted | as in set_take_or_enlist              | the token    |
-- | any other                     | {enlist} at the end of the wait queue | {>remaining} |
-- | missing, or autocommit is off | nothing                               | 0            |
UPDATE {>brief_wait} {t} SET
  {>set_take_or_enlist}
WHERE name = {name} AND @@autocommit
