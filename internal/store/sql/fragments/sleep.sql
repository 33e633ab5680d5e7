-- Sleeps until a signal, for at most {seconds}. On MariaDB, all connections in SLEEP share a mutex, and a
-- KILL QUERY that finds it locked can block them all for 2 s. So only one listener of a server uses SLEEP:
-- the one whose connection holds the name mysqllock:sleeper. The others wait for that name, each with its
-- own mutex.
--
-- | server  | mysqllock:sleeper            | ends by                     | answer           |
-- |---------|------------------------------|-----------------------------|------------------|
-- | MySQL   |                              | the time                    | 0                |
-- | MySQL   |                              | a signal                    | 1, or error 1317 |
-- | MariaDB | is held by this connection   | the time                    | 0                |
-- | MariaDB | is held by another           | the time                    | 0                |
-- | MariaDB | is held by this, or another  | a signal                    | 1, or error 1317 |
-- | MariaDB | is held by another, or free  | the name: it was released   | 2: sleep again   |
/*M! IF(IS_USED_LOCK(_ascii'mysqllock:sleeper') = CONNECTION_ID(), */ SLEEP({seconds})
/*M! , COALESCE(2 * GET_LOCK(_ascii'mysqllock:sleeper', {seconds}), 1)) */
