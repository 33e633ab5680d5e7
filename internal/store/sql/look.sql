-- Reads rows without a lock.
--
-- | row                   | lease     | micros                                       | next     |
-- |-----------------------|-----------|----------------------------------------------|----------|
-- | held by its own lease | positive  | left of the lease, or of the session if more | its head |
-- | kept by a session     | 0 or less | left of the session                          | its head |
-- | free                  | 0 or less | 0 or less                                    | its head |
-- | wait queue empty      |           |                                              | 0        |
-- | missing               | no result |                                              |          |
--
-- granted is set while the lease of a grant by a release runs. An explicit LIMIT overrides
-- sql_select_limit. No bare column is selected, because the DSN option columnsWithAlias would prefix
-- its name with the table.
{>select_brief}
  CAST(l.name AS BINARY) AS name,
  CAST(l.owner AS BINARY) AS owner,
  TIMESTAMPDIFF(MICROSECOND, {>now}, l.expires_at) AS lease,
  TIMESTAMPDIFF(MICROSECOND, {>now}, {>kept_until}) AS micros,
  IF(l.waiters = x'', 0, CAST({>head} AS UNSIGNED)) AS next,
  {>listed} OR LENGTH(l.waiters) > 1000 AS waiting,
  {>listed} AS listed,
  {>granted_recently} AS granted,
  {>demoted} AS demoted
FROM {>kept}
WHERE l.name IN ({names}) LIMIT {count}
