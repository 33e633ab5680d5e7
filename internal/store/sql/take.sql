-- Takes a free row for which no process waits, which is the common case.
--
-- | row                                  | written                        | answer                                  |
-- |--------------------------------------|--------------------------------|-----------------------------------------|
-- | free, wait queue empty, mode 0       | the grant, bound to no session | the token                               |
-- | free, a process waits, mode 0        | nothing                        | -1                                      |
-- | free, or claimed by {owner}, mode 1  | nothing                        | answerShared                            |
-- | granted to a copy of this statement  | nothing                        | the token of that grant                 |
-- | another holder's lease runs          | nothing                        | minus the microseconds left of it       |
-- | expired, its session may be alive    | nothing                        | the number of the session               |
-- | missing, or autocommit is off        | nothing                        | 0                                       |
--
-- With autocommit off, nobody else would see the grant, so no row matches. A proxy that lost the reply
-- may send the statement again, so each acquiring statement recognizes its own grant. The condition is
-- as short as possible, because MySQL optimizes it again for each execution, which takes longer than
-- evaluating it.
UPDATE {>brief_wait} {t} SET
  owner = {owner},
  holder = {label},
  holds = 1,
  token = LAST_INSERT_ID(GREATEST(token + 256, {>now_micros})),
  acquired_at = {>now},
  expires_at = {>new_lease},
  session = 0
WHERE name = {name} AND @@autocommit
  AND IF(expires_at > {>now},
    0 * LAST_INSERT_ID(IF(owner = {owner}, IF(mode = 0, CAST(token AS SIGNED), -4611686018427387901),
      TIMESTAMPDIFF(MICROSECOND, expires_at, {>now}))),
    IF(session IN (0, {dead}),
      IF(mode = 0, IF(waiters = x'', 1, 0 * LAST_INSERT_ID(-1)), 0 * LAST_INSERT_ID(-4611686018427387901)),
      0 * LAST_INSERT_ID(session)))
