-- Frees a row, regardless of its owner, after seize has locked its index entry. The token changes, so that every
-- later guard fails, including those of shared holds. The first byte of the owner id differs from that
-- after a release. The new token is computed as for a grant, and not just as the last one + 256: on
-- MariaDB, a guard under REPEATABLE READ also locks the gap before its entry, and such a token might
-- belong in that gap.
--
-- | row                                       | written                 | rows | answer                       |
-- |-------------------------------------------|-------------------------|------|------------------------------|
-- | held under {token}, or bound to a session | freed, with a new token | 1    | head of the wait queue, or 0 |
-- | of mode 1 or 2, with {token}              | freed, with a new token | 1    | head of the wait queue, or 0 |
-- | free, or held under another token         | nothing                 | 0    | 0                            |
UPDATE {t} SET token = {>next_token}, owner = INSERT(owner, 1, 1, _ascii'!'), {>set_freed}
WHERE name = {name} AND token = {token} AND (expires_at > {>now} OR session <> 0 OR mode <> 0)
