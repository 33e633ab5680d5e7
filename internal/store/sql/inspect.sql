-- Reads the state of one lock, for operators.
--
-- | row                             | micros    |
-- |---------------------------------|-----------|
-- | held, by its lease or a session | positive  |
-- | free                            | 0 or less |
-- | missing                         | no row    |
{>select_info}
WHERE l.name = {name} LIMIT 1
