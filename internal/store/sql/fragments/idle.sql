-- Whether the row is an idle lock. The keys of sessions, and of the high-water row, are below x'01'. The
-- row of a name that may be held shared must stay, because shared holds depend on it.
{r}name > x'01' AND {r}mode = 0 AND {>idle_since}
