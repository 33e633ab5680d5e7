-- Reads the state of every row that is held, or for which processes wait, for operators. The keys of
-- sessions, and of the high-water row, are below x'01'. An explicit LIMIT overrides sql_select_limit.
--
-- | row                                    | in the list |
-- |----------------------------------------|-------------|
-- | held, by its lease or a session        | yes         |
-- | free, with processes in its wait queue | yes         |
-- | any other that is free                 | no          |
-- | a session, or the high-water row       | no          |
{>select_info}
WHERE l.name > x'01' AND (l.expires_at > {>now} OR s.name IS NOT NULL OR l.waiters <> x'')
ORDER BY l.name LIMIT 18446744073709551615
