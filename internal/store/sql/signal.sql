-- Signals a process: ends the statement of its listener. See listen_name.
--
-- | process         | effect                    | answer     |
-- |-----------------|---------------------------|------------|
-- | listens         | its listen statement ends | done       |
-- | does not listen | none                      | error 1094 |
KILL QUERY IS_USED_LOCK(_ascii'mysqllock:{id}')
