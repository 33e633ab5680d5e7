-- Takes the row {key} of a shared hold, which counts as acquired at {acquired}, if {condition} holds for
-- the name's row, h. {lock} is LOCK IN SHARE MODE, or FOR UPDATE SKIP LOCKED.
--
-- | row {key}                           | {condition} | written                        | answer    |
-- |-------------------------------------|-------------|--------------------------------|-----------|
-- | missing                             | holds       | the row, with the grant        | the token |
-- | free                                | holds       | the grant, bound to no session | the token |
-- | granted to a copy of this statement | holds       | the later lease end            | the token |
-- | another hold of this process        | holds       | nothing                        | -1        |
-- | any                                 | fails       | nothing                        | 0         |
-- | any; h is locked, with SKIP LOCKED  |             | nothing                        | 0         |
-- | any, while autocommit is off        |             | nothing                        | 0         |
--
-- The lock on h makes this statement and the statements claim and promote wait for each other. A column
-- is assigned after everything that depends on it.
INSERT {>brief_wait} INTO {t} (name, owner, holder, holds, token, acquired_at, expires_at)
SELECT {key}, {owner}, {label}, 1, LAST_INSERT_ID({token}) | {>shared_bit}, {acquired}, {>new_lease}
FROM {t} AS h FORCE INDEX (PRIMARY)
WHERE h.name = {name} AND {condition} AND @@autocommit
{lock}
ON DUPLICATE KEY UPDATE
  holds = IF({>joins}, 1, {t}.holds + 0 * LAST_INSERT_ID(-1)),
  holder = IF({>joins}, {label}, {t}.holder),
  acquired_at = IF({>joins}, {acquired}, {t}.acquired_at),
  token = IF({>joins}, LAST_INSERT_ID(IF({t}.owner = {owner}, {t}.token & ({>shared_bit} - 1), {token})) | {>shared_bit}, {t}.token),
  session = IF({>joins} AND {t}.owner <> {owner}, 0, {t}.session),
  owner = IF({>joins}, {owner}, {t}.owner),
  expires_at = IF({>joins}, GREATEST({t}.expires_at, {>new_lease}), {t}.expires_at)
