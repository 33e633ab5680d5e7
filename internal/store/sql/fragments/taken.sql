-- Whether the statement takes the row. After owner was assigned, only owner decides.
--
-- | mode | owner                                        | row is available | taken             |
-- |------|----------------------------------------------|------------------|-------------------|
-- | 0    | {owner}: just assigned, or granted to a copy |                  | yes               |
-- | 0    | another, as it was before the statement      | yes              | yes               |
-- | 0    | another                                      | no               | no                |
-- | 1, 2 |                                              |                  | no: see claim.sql |
{r}mode = 0 AND ({r}owner = {owner} OR {>available})
