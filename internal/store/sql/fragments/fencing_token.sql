-- The fencing token of the row l. That of a shared hold has bit 62 set in its row (see join).
(l.token & 4611686018427387903)
