-- Whether the row is reserved for the head of its wait queue, if there is one (see ReservedFor). A process
-- that listens, whose id begins with 4 or more, takes the row within milliseconds; one that only polls
-- needs longer. A release may be later than now, which is when the statement began: it may have waited for
-- the row, or read it a moment later. A release that is far later was before the clock was set back.
--
-- | released           | head listens | head polls   |
-- |--------------------|--------------|--------------|
-- | over 1.5 s ago     | not reserved | not reserved |
-- | up to 1.5 s ago    | not reserved | reserved     |
-- | up to 0.25 s ago   | reserved     | reserved     |
-- | up to 1.5 s later  | reserved     | reserved     |
-- | over 1.5 s later   | not reserved | not reserved |
GREATEST({r}expires_at, {r}released_at)
  BETWEEN {>now} - INTERVAL IF(LEFT({r}waiters, 1) < _ascii'4', 1500000, 250000) MICROSECOND AND {>now} + INTERVAL 1500000 MICROSECOND
