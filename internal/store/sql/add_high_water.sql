-- Adds the high-water row, which keeps the highest token that Purge has deleted.
--
-- | high-water row | written               |
-- |----------------|-----------------------|
-- | missing        | the row, with token 0 |
-- | there          | nothing               |
INSERT INTO {t} (name) VALUES (x'') ON DUPLICATE KEY UPDATE name = x''
