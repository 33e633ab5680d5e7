-- Whether the row h of a name is in a shared phase (see admit), and no exclusive request has
-- claimed it since the last request was admitted.
h.mode = 1 AND LEFT(h.owner, 1) = _ascii'*'
