-- Reads the owner and the token of the hold that force ends.
--
-- | row                             | result          |
-- |---------------------------------|-----------------|
-- | held, by its lease or a session | owner and token |
-- | free, or missing                | no row          |
SELECT CAST(l.owner AS BINARY) AS owner, l.token + 0 AS token
FROM {>kept}
WHERE l.name = {name} AND (l.expires_at > {>now} OR s.name IS NOT NULL) LIMIT 1
