-- Reads the settings of the database session that can make the statements wrong, and the server's
-- version. It is sent twice, because a single read does not reveal a fixed clock.
--
-- | answer                 | meaning                                          |
-- |------------------------|--------------------------------------------------|
-- | autocommit = 0         | refused: a grant would be visible to nobody else |
-- | the same instant twice | refused: the session has a fixed timestamp       |
-- | version too old        | refused: it lacks SKIP LOCKED                    |
-- | chained = 1            | every use of a connection begins with commit     |
-- | wide = 1               | no statement is prepared                         |
-- | dirty = 1              | this process accepts no grants of releases       |
-- | logged = 1             | no release grants the row to another process     |
{>select_unlimited}
  @@autocommit AS autocommit,
  @@completion_type = 'CHAIN' AS chained,
  CAST(NOW(6) AS CHAR) AS instant,
  /*M! @@tx_isolation */ /*!80000 @@transaction_isolation */ = 'READ-UNCOMMITTED' AS dirty,
  @@binlog_format = 'STATEMENT' AS logged,
  @@character_set_connection IN ('utf16', 'utf16le', 'utf32', 'ucs2') AS wide,
  CAST(@@version AS BINARY) AS version
