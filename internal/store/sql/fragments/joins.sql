-- Whether a statement takes the row of a shared hold. After owner was assigned, only owner decides.
--
-- | owner                                        | own lease | session       | taken |
-- |----------------------------------------------|-----------|---------------|-------|
-- | {owner}: just assigned, or granted to a copy |           |               | yes   |
-- | another                                      | has ended | none, or dead | yes   |
-- | another                                      | runs      |               | no    |
-- | another                                      |           | may be alive  | no    |
({t}.owner = {owner} OR {t}.expires_at <= {>now} AND {t}.session IN (0, {dead}))
