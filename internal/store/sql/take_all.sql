-- Takes many rows, skipping locked ones. All get the same new token, so that one answer is enough; but
-- rows that a copy of this statement has taken before keep theirs.
--
-- | row                                 | written                                                    | counted | answer                      |
-- |-------------------------------------|------------------------------------------------------------|---------|-----------------------------|
-- | picked                              | the grant, bound to no session                             | yes     | the common token            |
-- | granted to a copy of this statement | the grant, again: same token, still bound, later lease end | yes     | 1                           |
-- | not picked: see pick_plain          | nothing                                                    | no      | 0, unless others were taken |
{>no_safe_updates} UPDATE {>brief_wait} ({>pick_plain}) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.owner = {owner},
  l.holder = {label},
  l.holds = 1,
  l.token = IF(mine.copied, l.token + 0 * LAST_INSERT_ID(1), LAST_INSERT_ID(GREATEST(l.token, {>now_micros}))),
  l.acquired_at = {>now},
  l.session = IF(mine.copied, l.session, 0),
  l.expires_at = GREATEST(l.expires_at, {>new_lease})
