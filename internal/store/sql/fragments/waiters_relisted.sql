-- The wait queue if it already lists this process. If the new request takes grants and the last one did
-- not, or the reverse, the id of the process is replaced in its place.
--
-- | id in the queue | {enlist}  | afterwards |
-- |-----------------|-----------|------------|
-- | {self}          | {direct}  | {direct}   |
-- | {direct}        | {self}    | {self}     |
-- | {polling}       |           | as it was  |
-- | any             | {polling} | as it was  |
IF({enlist} = {polling}, {r}waiters, REPLACE({r}waiters, IF({enlist} = {self}, {direct}, {self}), {enlist}))
