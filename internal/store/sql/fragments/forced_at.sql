-- When one of the locks of the process of session row p was last freed by force, in
-- microseconds.
TIMESTAMPDIFF(MICROSECOND, '1970-01-01', p.released_at)
