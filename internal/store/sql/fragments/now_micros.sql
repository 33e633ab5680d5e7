-- The clock in microseconds. A new token is above the range of the last holder, and above
-- every token that this clock granted on a server from which the last grants were not
-- replicated.
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {>now})
