-- Takes several names, some of which have no row yet. {rows} selects all names; {name} has the {count}
-- names that had a row a moment ago. The statement does not wait for locks on those rows, but waits for
-- other statements that add a row, and for Purge: see insert.
--
-- | rows                              | written                           | answer           |
-- |-----------------------------------|-----------------------------------|------------------|
-- | {name} picked, the others missing | the rows, with the grants         | the common token |
-- | added meanwhile, and plain        | the grant                         | the common token |
-- | added meanwhile, any other        | nothing; the grants of the others | 1                |
-- | granted to a copy                 | the grant, again: the same token  | 1                |
-- | some of {name} not picked         | nothing                           | 0                |
--
-- A locking read of a missing row would lock the gap, and two statements that add rows in that gap
-- would deadlock. The LIMIT prevents the server from computing the token again for each row, which
-- would hide an answer of 1.
INSERT {>brief_wait} INTO {t} (owner, name, holder, holds, token, acquired_at, expires_at)
SELECT {owner}, k.name, {label}, 1, s.token, {>now}, {>new_lease}
FROM (
  SELECT LAST_INSERT_ID(GREATEST(COALESCE(mine.token, 0), COALESCE(high.token, 0) + 256, {>now_micros})) AS token
  FROM (SELECT COUNT(*) AS picked, MAX(token) AS token FROM ({>pick_plain}) AS plain) AS mine
  STRAIGHT_JOIN (SELECT MAX(token) AS token FROM {t} WHERE name = x'' LOCK IN SHARE MODE) AS high
  WHERE mine.picked = {count} AND @@autocommit
  LIMIT 1
) AS s
STRAIGHT_JOIN ({rows}) AS k
WHERE TRUE
ON DUPLICATE KEY UPDATE
  session = IF({>plain}, 0, {r}session),
  owner = IF({>plain}, {owner}, {r}owner),
  token = IF({>plain}, s.token, {r}token + 0 * LAST_INSERT_ID(1)),
  holds = IF({>taken_plain}, 1, {r}holds),
  holder = IF({>taken_plain}, {label}, {r}holder),
  acquired_at = IF({>taken_plain}, {>now}, {r}acquired_at),
  expires_at = IF({>taken_plain}, GREATEST({r}expires_at, {>new_lease}), {r}expires_at)
