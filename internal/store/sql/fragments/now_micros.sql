-- The clock in microseconds. A new token is at least that, so it is above every token granted before a
-- failover that lost the last grants.
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {>now})
