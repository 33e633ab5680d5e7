-- The wait queue after this process has taken the row. The process leaves the queue. Another head, which
-- did not take the row in time, is removed, because a dead one would delay every handoff. If the row is
-- held, or reserved for another process, an earlier copy of the same statement has taken it.
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
