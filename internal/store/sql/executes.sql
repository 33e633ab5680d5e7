-- Reads whether the server executes a statement with the owner id. An account sees its own
-- statements without the PROCESS privilege.
--
-- | another connection of the account executes it | executes |
-- |-----------------------------------------------|----------|
-- | yes                                           | 1        |
-- | no                                            | 0        |
{>select_unlimited} COUNT(*) > 0 AS executes
FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND INSTR(info, {owner}) > 0
