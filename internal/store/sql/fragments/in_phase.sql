-- Whether the name's row, h, is in a shared phase (see admit), and no exclusive request has claimed the
-- name since the last request was admitted.
h.mode = 1 AND LEFT(h.owner, 1) = _ascii'*'
