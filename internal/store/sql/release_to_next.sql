-- Frees one row like release, or, if the head of its wait queue takes grants, makes that process the
-- owner. The new owner id is that of the process, an equals sign, which shows that a release has made
-- it, and {grant}. The lease is GrantLease until the process extends it.
--
-- | row                                         | head of the wait queue  | written              | rows | answer                  |
-- |---------------------------------------------|-------------------------|----------------------|------|-------------------------|
-- | owned by {owner}, or freed by a copy        | {>grants}, and listens  | the grant, no head   | 1    | the head                |
-- | owned by {owner}, or freed by a copy        | {>grants}, but does not | nothing              | 0    | 0                       |
-- | owned by {owner}, or freed by a copy        | any other, or none      | freed, as by release | 1    | {>head_listening}, or 0 |
-- | freed by force, another owner's, or missing |                         | nothing              | 0    | 0                       |
-- | any, while autocommit is off                |                         | nothing              | 0    | 0                       |
--
-- A process listens if a connection of it has the name of listen_name on this server. One that does
-- not could not be signalled, and would hold up the others. A grant changes the token, so the
-- statement would wait for a guard: it is sent only if there can be none. waiters is assigned after
-- everything that depends on it.
UPDATE {t} SET
  token = IF({>grants}, GREATEST(token + 256, {>now_micros}), token),
  owner = IF({>grants}, CONCAT({>head_listening}, _ascii'=', {grant}), INSERT(owner, 1, 1, _ascii'-')),
  holder = IF({>grants}, x'', IF(holder = x'', {label}, holder)),
  holds = IF({>grants}, 1 + 0 * LAST_INSERT_ID({>head}), IF(waiters = x'', 0, 0 * LAST_INSERT_ID({>head_listening}))),
  acquired_at = IF({>grants}, {>now}, acquired_at),
  released_at = {>now},
  session = 0,
  expires_at = IF({>grants}, {>now} + INTERVAL 4000000 MICROSECOND, TIMESTAMP'1970-01-01 00:00:00'),
  waiters = IF({>grants}, SUBSTRING(waiters, 20), waiters)
WHERE name = {name} AND owner IN ({owner}, {released}) AND @@autocommit
  AND (NOT {>grants} OR IS_USED_LOCK(CONCAT(_ascii'mysqllock:', {>head_listening})) IS NOT NULL)
