-- Whether a batch takes the row. Once owner is assigned, it alone decides.
({r}owner = {owner} OR {>plain})
