-- Reads whether the high-water row exists.
--
-- | high-water row | answer |
-- |----------------|--------|
-- | there          | 1      |
-- | missing        | 0      |
{>select_unlimited} COUNT(*) FROM {t} WHERE name = x'' LIMIT 1
