-- Assignments that take the row; or, if that is refused, append {enlist}, unless that is empty, to the
-- wait queue.
--
-- | row                                                    | written                                            | answer        |
-- |--------------------------------------------------------|----------------------------------------------------|---------------|
-- | available, of mode 0                                   | the grant, bound to no session                     | the token     |
-- | granted to a copy of this statement                    | the grant, again; still bound; the later lease end | the token     |
-- | available, of another mode                             | nothing                                            | {>remaining}  |
-- | any other                                              | {enlist} at the end of the queue                   | {>remaining}  |
-- | any other, with its queue full, or this process listed | nothing                                            | {>remaining}  |
--
-- A column is assigned after everything that depends on it.
session = IF({r}mode = 0 AND {>available}, 0, {r}session),
token = IF({>taken},
  LAST_INSERT_ID(IF({r}owner = {owner}, {r}token, GREATEST({r}token + 256, {>now_micros}))),
  {r}token + 0 * LAST_INSERT_ID({>remaining})),
owner = IF({r}mode = 0 AND {>available}, {owner}, {r}owner),
holds = IF({>taken}, 1, {r}holds),
holder = IF({>taken}, {label}, {r}holder),
acquired_at = IF({>taken}, {>now}, {r}acquired_at),
waiters = IF({>taken},
  {>waiters_after_take},
  {>waiters_enlisted}),
expires_at = IF({>taken}, GREATEST({r}expires_at, {>new_lease}), {r}expires_at)
