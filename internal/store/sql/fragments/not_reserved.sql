-- Whether this process may take a free row.
--
-- | wait queue                | reserved for its head | may take it |
-- |---------------------------|-----------------------|-------------|
-- | empty                     |                       | yes         |
-- | headed by this process    |                       | yes         |
-- | headed by another process | yes                   | no          |
-- | headed by another process | no                    | yes         |
({r}waiters = x'' OR {>head} IN ({self}, {polling}, {direct}) OR NOT ({>reserved}))
