-- Some rows of a semaphore as r, each with the number of its slot and the processes that wait. They are
-- the row {queue} of the wait queue, as slot 0; the slots from {first} to {window}; and those above {limit}.
(
  SELECT
    CAST(CONCAT(_ascii'0', SUBSTRING(l.name, {digits})) AS UNSIGNED) AS slot,
    l.expires_at,
    l.released_at,
    {>kept_until} AS until,
    q.waiters
  FROM (
    SELECT COALESCE(MAX(waiters), x'') AS waiters FROM {t} FORCE INDEX (PRIMARY) WHERE name = {queue}
  ) AS q
  STRAIGHT_JOIN {>kept}
  WHERE l.name = {queue} OR l.name BETWEEN {first} AND {window} OR l.name > {limit} AND l.name <= {last}
) AS r
