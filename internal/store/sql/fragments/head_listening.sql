-- The head of the wait queue, by the id under which it listens, if it takes grants; otherwise as it is.
--
-- | first digit | answer                     |
-- |-------------|----------------------------|
-- | 7           | its id with 5 in its place |
-- | 8           | its id with 6 in its place |
-- | any other   | the head                   |
IF({r}waiters >= _ascii'7', INSERT({>head}, 1, 1, IF(LEFT({r}waiters, 1) = _ascii'7', _ascii'5', _ascii'6')), {>head})
