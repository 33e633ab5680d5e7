-- Whether a session begins, or is extended by a copy of the statement that began it.
--
-- | session in the row | its lease | begins |
-- |--------------------|-----------|--------|
-- | an earlier one     |           | yes    |
-- | {id}               | runs      | yes    |
-- | {id}               | has ended | no     |
-- | a later one        |           | no     |
({t}.session < {id} OR {t}.session = {id} AND {t}.expires_at > {>now})
