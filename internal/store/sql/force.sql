-- Frees a row whose entry seize has locked, whatever its owner. The token changes, so that
-- every later guard fails, also of those that hold the name shared. The owner id is marked with
-- another byte than by a release. The new token is that of a grant: on MariaDB, a guard under
-- REPEATABLE READ also locks the gap before its entry, where a token only a range above the last
-- one may belong.
--
-- | row                                       | written                 | rows | answer                       |
-- |-------------------------------------------|-------------------------|------|------------------------------|
-- | held under {token}, or bound to a session | freed, with a new token | 1    | head of the wait queue, or 0 |
-- | of mode 1 or 2, with {token}              | freed, with a new token | 1    | head of the wait queue, or 0 |
-- | free, or held under another token         | nothing                 | 0    | 0                            |
UPDATE {t} SET token = {>next_token}, owner = INSERT(owner, 1, 1, _ascii'!'), {>set_freed}
WHERE name = {name} AND token = {token} AND (expires_at > {>now} OR session <> 0 OR mode <> 0)
