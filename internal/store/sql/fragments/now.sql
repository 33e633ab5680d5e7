-- The instant of the statement, by the database's clock. It is one instant within a
-- statement, also of one that waits for a row lock, and independent of the time zone.
UTC_TIMESTAMP(6)
