-- Reads, without a lock, why take_unlocked did not take the row. listed means that enlist would change
-- nothing. own means that an earlier statement, or a copy of it, has acquired the row for the request.
--
-- | row                     | autocommit | available | answer       | so take_unlocked was refused because |
-- |-------------------------|------------|-----------|--------------|--------------------------------------|
-- | any                     | 0          |           |              | autocommit is off                    |
-- | available               | 1          | 1         | {>remaining} | the row or its guard entry is locked |
-- | held, kept, or reserved | 1          | 0         | {>remaining} | the reason that the answer gives     |
-- | acquired by {owner}     | 1          | 0         | own is 1     | the row or its guard entry is locked |
-- | missing                 | no result  |           |              | there is no row                      |
{>select_brief}
  {>remaining} AS answer,
  @@autocommit AS autocommit,
  ({>available}) + 0 AS available,
  (owner = {owner} AND mode = 0 AND expires_at > {>now}) + 0 AS own,
  ({>listed} OR LENGTH(waiters) > 1000) + 0 AS listed
FROM {t} FORCE INDEX (PRIMARY) WHERE name = {name} LIMIT 1
