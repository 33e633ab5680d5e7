-- Guards a token in the transaction of the caller: locks the index entry until the transaction
-- ends.
--
-- | entry of the token                    | locked    | result    |
-- |---------------------------------------|-----------|-----------|
-- | there, and seen by the transaction    | the entry | the token |
-- | missing                               | nothing   | no row    |
-- | newer than the transaction's snapshot | nothing   | no row    |
--
-- Under REPEATABLE READ, MariaDB also locks the gap before an entry that is there: for no statement
-- does it lock an entry of a secondary index alone. If the entry is missing, guard_now locks the
-- gap around it under REPEATABLE READ: for a deleted row the end of the index, where every grant
-- would wait. So the derived table looks for the entry without a lock first. The LIMIT prevents
-- MySQL from merging it. SERIALIZABLE locks the gap even so.
{>select_unlimited} l.token + 0
FROM (
  SELECT token, name FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LIMIT 1
) AS seen
STRAIGHT_JOIN {t} AS l FORCE INDEX (guard) ON l.token = seen.token AND l.name = seen.name
LOCK IN SHARE MODE
