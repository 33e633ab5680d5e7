-- When one of the locks of the process of session row p was last freed by force: the last 31
-- bits of microseconds, which are enough to see a change.
(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', p.released_at) & 2147483647)
