-- Whether this process is in the wait queue, listening or polling.
(LOCATE({self}, {r}waiters) > 0 OR LOCATE({polling}, {r}waiters) > 0)
