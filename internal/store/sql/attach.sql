-- Makes {owner} the owner of a ticket's row. The token does not change, because the hold continues.
-- {skip} is empty, or SKIP LOCKED.
--
-- | row                                    | written                                    | answer    |
-- |----------------------------------------|--------------------------------------------|-----------|
-- | of {ticket}, and its lease runs        | {owner}, {label}, one handle, the new end  | its token |
-- | of {ticket}, and its lease has ended   | nothing                                    | -1        |
-- | owned by {owner}, by a copy            | {label}, one handle, the later end         | its token |
-- | another owner's, or missing            | nothing                                    | 0         |
-- | locked, with SKIP LOCKED               | nothing                                    | 0         |
-- | any, while autocommit is off           | nothing                                    | 0         |
--
-- A ticket's row is bound to no session. An UPDATE of two tables may assign in any order, so values
-- that depend on owner come from mine.
{>no_safe_updates} UPDATE (
  SELECT name, owner = {owner} AS copied, owner = {owner} OR expires_at > {>now} AS granted
  FROM {t} FORCE INDEX (PRIMARY)
  WHERE name = {name} AND owner IN ({ticket}, {owner}) AND @@autocommit
  LIMIT 1 FOR UPDATE {skip}
) AS mine
STRAIGHT_JOIN {t} AS l FORCE INDEX (PRIMARY) ON l.name = mine.name
SET
  l.holds = IF(mine.granted, 1, l.holds) + 0 * LAST_INSERT_ID(IF(mine.granted, CAST({>fencing_token} AS SIGNED), -1)),
  l.holder = IF(mine.granted, {label}, l.holder),
  l.owner = IF(mine.granted, {owner}, l.owner),
  l.expires_at = IF(mine.granted, GREATEST(IF(mine.copied, l.expires_at, {>now}), {>new_lease}), l.expires_at)
