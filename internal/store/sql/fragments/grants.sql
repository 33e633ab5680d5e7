-- Whether a release of the row makes the head of its wait queue the owner. Only an id of the kind
-- that takes grants begins with 7 or 8.
--
-- | mode | head                                 | grants |
-- |------|--------------------------------------|--------|
-- | 0    | takes grants, another process        | yes    |
-- | 0    | takes grants, this process           | no     |
-- | 0    | any other, or the queue is empty     | no     |
-- | 1, 2 |                                      | no     |
({r}waiters >= _ascii'7' AND {r}mode = 0 AND {>head} <> {direct})
