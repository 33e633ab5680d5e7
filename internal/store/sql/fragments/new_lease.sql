-- The end of a lease that begins now.
{>now} + INTERVAL {lease} MICROSECOND
