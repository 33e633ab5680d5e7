-- Takes a free row for which no process waits: the common case.
--
-- | row                                 | written                        | answer                          |
-- |-------------------------------------|--------------------------------|---------------------------------|
-- | free, wait queue empty, mode 0      | the grant, bound to no session | the token                       |
-- | free, a process waits, mode 0       | nothing                        | -1                              |
-- | free, or claimed by {owner}, mode 1 | nothing                        | answerShared                    |
-- | granted to a copy of this statement | nothing                        | the token of that grant         |
-- | another holder's lease runs         | nothing                        | {>held_answer}                  |
-- | expired, its session may be alive   | nothing                        | the number of the session       |
-- | missing, or autocommit is off       | nothing                        | 0                               |
--
-- With autocommit off, nobody else would see the grant, so then no row matches. A proxy that
-- lost the reply may send the statement again, so an acquiring statement recognizes its own
-- grant.
UPDATE {t} SET
  owner = {owner},
  holder = {label},
  holds = 1,
  token = LAST_INSERT_ID(GREATEST(token + 256, {>now_micros})),
  acquired_at = {>now},
  expires_at = {>new_lease},
  session = 0
WHERE name = {name} AND @@autocommit
  AND IF(expires_at <= {>now} AND session IN (0, {dead}) AND waiters = x'' AND mode = 0, 1,
    0 * LAST_INSERT_ID(
      IF(owner = {owner} AND expires_at > {>now}, IF(mode = 0, CAST(token AS SIGNED), -4611686018427387901),
        IF(expires_at > {>now} OR session IN (0, {dead}),
          IF(mode <> 0 AND expires_at <= {>now}, -4611686018427387901, {>held_answer}),
          CAST(session AS SIGNED)))))
