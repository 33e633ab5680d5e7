-- Whether nobody has held the row by its own lease for the last {idle} microseconds.
--
-- | own lease ended | last release  | idle |
-- |-----------------|---------------|------|
-- | before {idle}   | before {idle} | yes  |
-- | later, or runs  |               | no   |
-- |                 | later         | no   |
{r}expires_at <= {>now} - INTERVAL {idle} MICROSECOND AND {r}released_at <= {>now} - INTERVAL {idle} MICROSECOND
