-- Assignments that end the lease and unbind the row. The token does not change, because a guard may have
-- locked its index entry.
--
-- | wait queue | answer                                  |
-- |------------|-----------------------------------------|
-- | empty      | 0                                       |
-- | not empty  | its head, for which the row is reserved |
{r}holds = IF({r}waiters = x'', 0, 0 * LAST_INSERT_ID({>head})),
{r}released_at = {>now},
{r}session = 0,
{r}expires_at = '1970-01-01'
