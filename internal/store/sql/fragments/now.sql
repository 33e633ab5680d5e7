-- The time of the statement, by the database's clock. It is the same instant throughout a statement, even
-- if that waits for a row lock, and does not depend on the time zone.
UTC_TIMESTAMP(6)
