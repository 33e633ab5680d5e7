-- Adds the row {key}, which keeps a name shared although it belongs to nobody: until {held} has passed
-- since the hold {part} was acquired, or for {left} from now, whichever ends later. If the clock was set
-- back since then, that does not prolong it. The two comments in the statement, for MariaDB and for
-- MySQL, limit each wait for a lock to a second.
--
-- | row {part}                     | row {key}                           | written             | answer |
-- |--------------------------------|-------------------------------------|---------------------|--------|
-- | owned by {part owner}          | missing, or free                    | the row, taken      | 1      |
-- | owned by {part owner}          | written by a copy of this statement | the later end       | 1      |
-- | owned by {part owner}          | another hold of this process        | nothing             | -1     |
-- | another owner's, or missing    | any                                 | nothing             | 0      |
-- | any, after the end of its phase | any                                | nothing             | 0      |
-- | any, while autocommit is off   | any                                 | nothing             | 0      |
--
-- The locks are those of join. A column is assigned after everything that depends on it.
/*M! SET STATEMENT innodb_lock_wait_timeout = 1 FOR */ INSERT /*+ SET_VAR(innodb_lock_wait_timeout = 1) SET_VAR(lock_wait_timeout = 2) */ INTO {t}
  (name, owner, holder, token, acquired_at, expires_at)
SELECT {key}, {owner}, {label}, k.token + 0 * LAST_INSERT_ID(1), k.acquired_at,
  GREATEST(LEAST(k.acquired_at, {>now}) + INTERVAL {held} MICROSECOND, {>now} + INTERVAL {left} MICROSECOND)
FROM {t} AS h FORCE INDEX (PRIMARY)
STRAIGHT_JOIN {t} AS k FORCE INDEX (PRIMARY) ON k.name = {part} AND k.token = h.token | {>shared_bit}
WHERE h.name = {name} AND h.mode = 1 AND k.owner = {part owner} AND @@autocommit
LOCK IN SHARE MODE
ON DUPLICATE KEY UPDATE
  holds = IF({>joins}, 0, {t}.holds + 0 * LAST_INSERT_ID(-1)),
  holder = IF({>joins}, {label}, {t}.holder),
  acquired_at = IF({>joins}, k.acquired_at, {t}.acquired_at),
  token = IF({>joins}, k.token, {t}.token),
  session = IF({>joins}, 0, {t}.session),
  owner = IF({>joins}, {owner}, {t}.owner),
  expires_at = IF({>joins}, GREATEST({t}.expires_at, LEAST(k.acquired_at, {>now}) + INTERVAL {held} MICROSECOND, {>now} + INTERVAL {left} MICROSECOND), {t}.expires_at)
