-- Adds the high-water row, whose token is the highest that Purge deleted.
--
-- | high-water row | written               |
-- |----------------|-----------------------|
-- | missing        | the row, with token 0 |
-- | there          | nothing               |
INSERT INTO {t} (name) VALUES (x'') ON DUPLICATE KEY UPDATE name = x''
