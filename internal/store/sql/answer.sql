-- Reads the number that the last statement on the connection passed to LAST_INSERT_ID. If a trigger has
-- executed a statement of its own, the server leaves that number out of its reply.
--
-- | last statement        | answer          |
-- |-----------------------|-----------------|
-- | called LAST_INSERT_ID | its last number |
SELECT CAST(LAST_INSERT_ID() AS SIGNED)
