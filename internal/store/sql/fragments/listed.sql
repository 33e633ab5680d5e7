-- Whether this process is in the wait queue, under any of its ids.
(LOCATE({self}, {r}waiters) > 0 OR LOCATE({polling}, {r}waiters) > 0 OR LOCATE({direct}, {r}waiters) > 0)
