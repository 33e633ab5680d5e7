-- The head of the wait queue: each entry has 19 digits.
LEFT({r}waiters, 19)
