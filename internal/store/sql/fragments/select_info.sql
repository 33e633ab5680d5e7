-- What operators see of the rows l. A row that a release has granted has no label until it is renewed;
-- the label is in p, the session row of the process. No bare column is selected, because the DSN option
-- columnsWithAlias would prefix its name with the table.
{>select_unlimited}
  CAST(l.name AS BINARY) AS name,
  CAST(l.owner AS BINARY) AS owner,
  CAST(IF(SUBSTRING(l.owner, 20, 1) = _ascii'=' AND l.holder = x'', COALESCE(p.holder, x''), l.holder) AS BINARY) AS holder,
  l.mode + 0 AS mode,
  l.holds + 0 AS holds,
  {>fencing_token} AS token,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', l.acquired_at) AS acquired,
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {>kept_until}) AS expires,
  TIMESTAMPDIFF(MICROSECOND, {>now}, {>kept_until}) AS micros,
  LENGTH(l.waiters) DIV 19 AS waiters
FROM {>kept}
LEFT JOIN {t} AS p FORCE INDEX (PRIMARY)
  ON SUBSTRING(l.owner, 20, 1) = _ascii'=' AND p.name = CONCAT(x'00', CAST(LEFT(l.owner, 19) AS BINARY))
