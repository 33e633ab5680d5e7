-- Only for MariaDB. Under sql_safe_updates, it refuses a statement that joins picked rows, because it does
-- not see that the join uses the key.
/*M! SET STATEMENT sql_safe_updates = 0 FOR */
