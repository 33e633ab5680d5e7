-- Only for MySQL, which executes a statement to its end when its client has gone. While a backup, an ALTER or
-- LOCK TABLES has the table locked, every statement that is cut off and sent again would leave a connection
-- in the server, until no more can be opened. MariaDB ends such a statement.
/*+ SET_VAR(lock_wait_timeout = 2) */
