-- The wait queue, which lists this process, with its id replaced in place if its request has changed
-- so that it takes grants, or no longer does.
--
-- | id in the queue | {enlist}  | afterwards |
-- |-----------------|-----------|------------|
-- | {self}          | {direct}  | {direct}   |
-- | {direct}        | {self}    | {self}     |
-- | {polling}       |           | as it was  |
-- | any             | {polling} | as it was  |
IF({enlist} = {polling}, {r}waiters, REPLACE({r}waiters, IF({enlist} = {self}, {direct}, {self}), {enlist}))
