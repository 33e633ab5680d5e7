-- Guards a token in the caller's transaction: locks its index entry until the transaction ends.
--
-- | entry of the token                    | locked    | result    |
-- |---------------------------------------|-----------|-----------|
-- | there, and seen by the transaction    | the entry | the token |
-- | missing                               | nothing   | no row    |
-- | newer than the transaction's snapshot | nothing   | no row    |
--
-- Under REPEATABLE READ, MariaDB also locks the gap before an existing entry, because it never locks
-- only the entry of a secondary index. If the entry is missing, a locking read under REPEATABLE READ
-- locks the gap where it would be. For a deleted row that may be the end of the index, where every
-- grant would wait. So the derived table first looks for the entry without a lock. The LIMIT prevents
-- MySQL from merging it. Under SERIALIZABLE, the gap is locked in spite of that.
{>select_unlimited} l.token + 0
FROM (
  SELECT token, name FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LIMIT 1
) AS seen
STRAIGHT_JOIN {t} AS l FORCE INDEX (guard) ON l.token = seen.token AND l.name = seen.name
LOCK IN SHARE MODE
