-- Whether the row was acquired within GrantLease.
{r}acquired_at > {>now} - INTERVAL 4000000 MICROSECOND
