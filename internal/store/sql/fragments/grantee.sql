-- The id under which the head of the wait queue listens, if the head takes grants.
--
-- | first digit | answer                     |
-- |-------------|----------------------------|
-- | 7           | its id with 5 in its place |
-- | 8           | its id with 6 in its place |
CONCAT(IF({r}waiters < _ascii'8', _ascii'5', _ascii'6'), SUBSTRING({r}waiters, 2, 18))
