-- When a lock of the process with the session row p was last freed by force: the last 31 bits of the
-- microseconds, which are enough to notice a change.
(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', p.released_at) & 2147483647)
