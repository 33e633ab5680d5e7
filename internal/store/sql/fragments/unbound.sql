-- Whether no session can keep the row. A statement that acquires does not read the row of a
-- session: a locking read would delay the session's renewal. It knows one dead session, and
-- answers with the number of any other to which an expired row is bound.
--
-- | session of the row | unbound             |
-- |--------------------|---------------------|
-- | 0                  | yes                 |
-- | {dead}             | yes                 |
-- | any other          | no: it must be read |
{r}session IN (0, {dead})
