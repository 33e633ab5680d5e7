-- What operators see of the rows l. No bare column is selected, because columnsWithAlias
-- would prefix its name with the table.
SELECT
  CAST(l.name AS BINARY) AS name,
  CAST(l.owner AS BINARY) AS owner,
  CAST(l.holder AS BINARY) AS holder,
  l.mode + 0 AS mode,
  l.holds + 0 AS holds,
  l.token + 0 AS token,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.acquired_at) AS acquired,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {>kept_until}) AS expires,
  TIMESTAMPDIFF(MICROSECOND, {>now}, {>kept_until}) AS micros,
  LENGTH(l.waiters) DIV 19 AS waiters
FROM {>kept}
