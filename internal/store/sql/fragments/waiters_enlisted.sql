-- The wait queue after a request was refused.
--
-- | row                            | wait queue                   | afterwards          |
-- |--------------------------------|------------------------------|---------------------|
-- | not available                  | has room, lacks this process | {enlist} at its end |
-- | not available                  | full, or lists this process  | as it was           |
-- | available, claimed by {owner}  |                              | as it was           |
IF({enlist} = x'' OR {>listed} OR LENGTH({r}waiters) > 1000 OR {r}mode <> 0 AND {r}owner = {owner} OR {>available}, {r}waiters, CONCAT({r}waiters, {enlist}))
