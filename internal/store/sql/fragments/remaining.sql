-- The answer to an acquire that is refused.
--
-- | own lease | session       | mode   | reserved for another | answer                                      |
-- |-----------|---------------|--------|----------------------|---------------------------------------------|
-- | runs      |               |        |                      | {>held_answer}                              |
-- | has ended | may be alive  |        |                      | the number of the session                   |
-- | has ended | none, or dead |        | yes                  | answerReserved                              |
-- | has ended | none, or dead | 1 or 2 | no                   | answerShared                                |
-- | claimed by {owner}        | 1 or 2 |                      | answerShared                                |
IF({r}mode <> 0 AND {r}owner = {owner},
  -4611686018427387901,
  IF({r}expires_at > {>now},
    {>held_answer},
    IF({>unbound}, IF({r}mode <> 0 AND {>not_reserved}, -4611686018427387901, -4611686018427387904), CAST({r}session AS SIGNED))))
