-- Assignments of a release by the owner. Overwriting one byte of the owner id keeps the row's length, so
-- InnoDB updates it in place. If a release has granted the row, and it has not been renewed since, it gets
-- the label of this process.
{r}owner = INSERT({r}owner, 1, 1, _ascii'-'),
{r}holder = IF({r}holder = x'', {label}, {r}holder),
{>set_freed}
