-- The wait queue of a semaphore without this process, and without its head if that is {overdue}.
REPLACE(REPLACE(REPLACE(IF({>head} = {overdue}, SUBSTRING({r}waiters, 20), {r}waiters), {self}, x''), {polling}, x''), {direct}, x'')
