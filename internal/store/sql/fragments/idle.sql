-- Whether the row is an idle lock. The keys of sessions, and of the high-water row, are below x'01'. The
-- row of a name that may be held shared must stay, because shared holds depend on it. So must a row that
-- is reserved for the head of its wait queue, or the waiters would lose their places.
{r}name > x'01' AND {r}mode = 0 AND {>idle_since} AND ({r}waiters = x'' OR NOT ({>reserved}))
