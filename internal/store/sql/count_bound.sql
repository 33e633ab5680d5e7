-- Counts the rows that a session of this process keeps.
--
-- | row                          | counted |
-- |------------------------------|---------|
-- | a lock that is bound to {id} | yes     |
-- | any other, and the session   | no      |
{>select_brief} COUNT(*) AS bound FROM {t} FORCE INDEX (session) WHERE session = {id} AND name > x'01'
