-- Whether the statement takes the row. Once owner is assigned, it alone decides.
--
-- | owner                                        | row is available | taken |
-- |----------------------------------------------|------------------|-------|
-- | {owner}: just assigned, or granted to a copy |                  | yes   |
-- | another, as it was before the statement      | yes              | yes   |
-- | another                                      | no               | no    |
{r}owner = {owner} OR {>available}
