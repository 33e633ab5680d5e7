-- Only for MySQL, which executes a statement to its end even if the client has closed the connection. While a
-- backup, an ALTER or LOCK TABLES has the table locked, every statement that is cut off and sent again would
-- leave a connection in the server, until no more can be opened. MariaDB ends such a statement.
/*+ SET_VAR(lock_wait_timeout = 2) */
