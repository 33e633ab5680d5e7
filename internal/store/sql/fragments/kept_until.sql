-- The time until which the row l is held, by its own lease or by the session s, whichever ends later.
GREATEST(l.expires_at, COALESCE(s.expires_at, l.expires_at))
