-- The wait queue after this process took the row. A process that takes the row leaves the
-- queue. A head that did not take the row in time is removed: a dead one would delay every
-- handoff. A row that is held, or reserved for another, was taken by an earlier copy of the same
-- statement.
--
-- | wait queue                | row                     | afterwards                             |
-- |---------------------------|-------------------------|----------------------------------------|
-- | empty                     |                         | empty                                  |
-- | headed by this process    |                         | without this process                   |
-- | headed by another process | is held, or reserved    | without this process                   |
-- | headed by another process | is free, not reserved   | without its head, without this process |
IF({r}waiters = x'', x'', REPLACE(REPLACE(REPLACE(
  IF({>head} IN ({self}, {polling}, {direct}) OR {r}expires_at > {>now} OR {>reserved}, {r}waiters, SUBSTRING({r}waiters, 20)),
  {self}, x''), {polling}, x''), {direct}, x''))
