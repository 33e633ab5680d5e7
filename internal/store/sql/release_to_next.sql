-- Frees one row like release; or, if the head of its wait queue takes grants, makes that process the new
-- owner. The new owner id consists of the id of the process, an equals sign, which shows that a release
-- has made the grant, and {grant}. The lease is GrantLease until the process extends it.
--
-- | row                                         | head of the wait queue                        | written              | rows | answer         |
-- |---------------------------------------------|-----------------------------------------------|----------------------|------|----------------|
-- | owned by {owner}, or freed by a copy        | takes grants, listens, is another; the mode 0 | the grant, no head   | 1    | the head       |
-- | owned by {owner}, or freed by a copy        | takes grants, any other                       | nothing              | 0    | 0              |
-- | owned by {owner}, or freed by a copy        | takes none, or the queue is empty             | freed, as by release | 1    | the head, or 0 |
-- | freed by force, another owner's, or missing |                                               | nothing              | 0    | 0              |
-- | any, while autocommit is off                |                                               | nothing              | 0    | 0              |
--
-- In the wait queue, the ids of processes that take grants begin with 7 or 8, all others with a lower
-- digit. A process listens if one of its connections holds the name of listen_name on this server; any
-- other could not be signalled, and would delay the processes behind it. A grant changes the token, so
-- it would wait for a guard; therefore the statement is sent only if there can be none. The statement is
-- short, because MySQL optimizes it again for each execution. waiters is assigned after everything that
-- depends on it.
UPDATE {>brief_wait} {t} SET
  token = IF(waiters < _ascii'7', token, {>next_token}),
  owner = IF(waiters < _ascii'7', INSERT(owner, 1, 1, _ascii'-'), CONCAT({>grantee}, _ascii'=', {grant})),
  holder = IF(waiters < _ascii'7', IF(holder = x'', {label}, holder), x''),
  holds = IF(waiters = x'', 0, (waiters >= _ascii'7') + 0 * LAST_INSERT_ID({>head})),
  acquired_at = IF(waiters < _ascii'7', acquired_at, {>now}),
  released_at = {>now},
  session = 0,
  expires_at = IF(waiters < _ascii'7', TIMESTAMP'1970-01-01 00:00:00', {>now} + INTERVAL 4000000 MICROSECOND),
  waiters = IF(waiters < _ascii'7', waiters, SUBSTRING(waiters, 20))
WHERE name = {name} AND owner IN ({owner}, {released}) AND @@autocommit
  AND IF(waiters < _ascii'7', 1, mode = 0 AND {>head} <> {direct} AND IS_USED_LOCK(CONCAT(_ascii'mysqllock:', {>grantee})) IS NOT NULL)
