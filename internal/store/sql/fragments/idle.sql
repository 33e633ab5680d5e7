-- Whether the row is an idle lock: the names of sessions, and of the high-water row, are below
-- x'01'.
{r}name > x'01' AND {>idle_since}
