-- Replaces an owner of this process by another one. The token changes, so the statement waits for an
-- open guard. It excludes mode 1, because a late copy of an old claim may have restored the owner while
-- the name is held shared.
--
-- | row                                 | written                                            | answer        |
-- |-------------------------------------|----------------------------------------------------|---------------|
-- | {replaced}: the owner, its token    | the grant, bound to no session                     | the token     |
-- | granted to a copy of this statement | the grant, again; still bound; the later lease end | the token     |
-- | of mode 1, another owner's, missing | nothing                                            | 0             |
-- | any, while autocommit is off        | nothing                                            | 0             |
UPDATE {>brief_wait} {t} SET
  session = IF(owner = {owner}, session, 0),
  holder = {label},
  holds = 1,
  token = LAST_INSERT_ID(IF(owner = {owner}, token, GREATEST(token + 256, {>now_micros}))),
  acquired_at = {>now},
  expires_at = IF(owner = {owner}, GREATEST(expires_at, {>new_lease}), {>new_lease}),
  owner = {owner}
WHERE name = {name} AND ({replaced} OR owner = {owner}) AND mode <> 1 AND @@autocommit
