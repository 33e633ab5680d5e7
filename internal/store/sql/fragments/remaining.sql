-- The answer to an acquire that is refused.
--
-- | own lease | session       | reserved for another | answer                                      |
-- |-----------|---------------|----------------------|---------------------------------------------|
-- | runs      |               |                      | the microseconds left, as a negative number |
-- | has ended | may be alive  |                      | the number of the session                   |
-- | has ended | none, or dead | no, and mode is not 0 | answerShared                               |
-- | has ended | none, or dead | yes                  | answerReserved                              |
IF({r}expires_at > {>now},
  -TIMESTAMPDIFF(MICROSECOND, {>now}, {r}expires_at),
  IF({>unbound}, IF({r}mode <> 0 AND {>not_reserved}, -4611686018427387901, -4611686018427387904), CAST({r}session AS SIGNED)))
