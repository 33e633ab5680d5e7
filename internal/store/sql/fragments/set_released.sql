-- Assignments of a release by the owner. Overwriting one byte of the owner id keeps the row's
-- length, so InnoDB updates it in place.
{r}owner = INSERT({r}owner, 1, 1, _ascii'-'),
{>set_freed}
