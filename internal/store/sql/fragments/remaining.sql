-- The answer to an acquire that is refused.
--
-- | own lease | session       | answer                                      |
-- |-----------|---------------|---------------------------------------------|
-- | runs      |               | the microseconds left, as a negative number |
-- | has ended | may be alive  | the number of the session                   |
-- | has ended | none, or dead | answerReserved                              |
IF({r}expires_at > {>now},
  -TIMESTAMPDIFF(MICROSECOND, {>now}, {r}expires_at),
  IF({>unbound}, -4611686018427387904, CAST({r}session AS SIGNED)))
