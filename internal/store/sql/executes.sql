-- Reads whether the server is executing a statement that contains the owner id. Without the PROCESS
-- privilege, an account sees only its own statements, which is enough.
--
-- | another connection of the account executes it | executes |
-- |-----------------------------------------------|----------|
-- | yes                                           | 1        |
-- | no                                            | 0        |
{>select_unlimited} COUNT(*) > 0 AS executes
FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND INSTR(info, {owner}) > 0
