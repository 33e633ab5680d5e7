-- Guards a token like guard, but also finds one that is newer than the snapshot of the transaction. It
-- reads only the index, so it locks only the index entry: a change of owner waits for that, but a
-- renewal does not.
--
-- | entry of the token | locked                                     | result    |
-- |--------------------|--------------------------------------------|-----------|
-- | there              | the entry                                  | the token |
-- | missing            | the gap around it, from REPEATABLE READ on | no row    |
{>select_unlimited} token + 0 FROM {t} FORCE INDEX (guard) WHERE token = {token} AND name = {name} LOCK IN SHARE MODE
