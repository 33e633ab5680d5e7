-- Frees one row. The statement waits while a transaction has the row locked.
--
-- | row                                         | written      | rows | answer                       |
-- |---------------------------------------------|--------------|------|------------------------------|
-- | owned by {owner}                            | freed        | 1    | head of the wait queue, or 0 |
-- | freed by a copy of this statement           | freed, again | 1    | head of the wait queue, or 0 |
-- | freed by force, another owner's, or missing | nothing      | 0    | 0                            |
-- | any, while autocommit is off                | nothing      | 0    | 0                            |
--
-- A release also matches a row that it has already released, because a proxy that lost the reply may
-- send it twice. force marks the owner id in another way, so that a holder whose lock was taken away
-- does not mistake that for its own release.
UPDATE {>brief_wait} {t} SET {>set_released}
WHERE name = {name} AND owner IN ({owner}, {released}) AND @@autocommit
