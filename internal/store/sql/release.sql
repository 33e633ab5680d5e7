-- Frees one row, and waits while a transaction has it locked.
--
-- | row                                         | written      | rows | answer                       |
-- |---------------------------------------------|--------------|------|------------------------------|
-- | owned by {owner}                            | freed        | 1    | head of the wait queue, or 0 |
-- | freed by a copy of this statement           | freed, again | 1    | head of the wait queue, or 0 |
-- | freed by force, another owner's, or missing | nothing      | 0    | 0                            |
-- | any, while autocommit is off                | nothing      | 0    | 0                            |
--
-- A release also matches a row that it has released: a proxy that lost the reply may send it
-- twice. force marks the owner id differently, so a holder whose lock was forced does not find
-- it released.
UPDATE {t} SET {>set_released}
WHERE name = {name} AND owner IN ({owner}, {released}) AND @@autocommit
