-- Whether this process may take the row now.
--
-- | own lease | session       | reserved for another | available                    |
-- |-----------|---------------|----------------------|------------------------------|
-- | runs      |               |                      | no                           |
-- | has ended | may be alive  |                      | no: the session must be read |
-- | has ended | none, or dead | yes                  | no                           |
-- | has ended | none, or dead | no                   | yes                          |
{r}expires_at <= {>now} AND {>unbound} AND {>not_reserved}
