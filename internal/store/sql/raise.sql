-- Raises the high-water row, before Purge deletes rows with tokens up to {token}.
--
-- | token of the high-water row | written |
-- |-----------------------------|---------|
-- | below {token}               | {token} |
-- | {token} or above            | nothing |
UPDATE {t} SET token = GREATEST(token, {token}) WHERE name = x''
