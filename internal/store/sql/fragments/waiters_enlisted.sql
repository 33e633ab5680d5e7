-- The wait queue after a request was refused.
--
-- | row                              | wait queue                   | afterwards          |
-- |----------------------------------|------------------------------|---------------------|
-- | not available                    | has room, lacks this process | {enlist} at its end |
-- | not available                    | full                         | as it was           |
-- | not available                    | lists this process           | {>waiters_relisted} |
-- | available, claimed by {owner}    |                              | as it was           |
-- | granted recently to this process |                              | as it was           |
IF({enlist} = x'' OR {r}mode <> 0 AND {r}owner = {owner} OR {>granted_to_self} OR {>available}, {r}waiters,
  IF({>listed}, {>waiters_relisted}, IF(LENGTH({r}waiters) > 1000, {r}waiters, CONCAT({r}waiters, {enlist}))))
