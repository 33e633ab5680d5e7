-- Reads the permits of a semaphore that are held, by slot, and the row {name} of its wait queue, for
-- operators. An explicit LIMIT overrides sql_select_limit.
--
-- | row                                    | in the list |
-- |----------------------------------------|-------------|
-- | the wait queue                         | yes         |
-- | a slot, held by its lease or a session | yes         |
-- | a slot that is free                    | no          |
{>select_info}
WHERE l.name = {name} OR l.name > {name} AND l.name <= {last} AND (l.expires_at > {>now} OR s.name IS NOT NULL)
ORDER BY l.name LIMIT 18446744073709551615
