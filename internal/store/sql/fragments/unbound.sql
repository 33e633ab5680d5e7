-- Whether no session can keep the row held. An acquiring statement does not read the row of a session,
-- because a locking read would delay the session's renewal. Instead it is given the number of one dead
-- session. If an expired row is bound to any other session, it answers with the number of that.
--
-- | session of the row | unbound             |
-- |--------------------|---------------------|
-- | 0                  | yes                 |
-- | {dead}             | yes                 |
-- | any other          | no: it must be read |
{r}session IN (0, {dead})
