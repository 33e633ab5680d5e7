-- Whether nobody holds the name of the row p shared. The statement must have locked p. This locks the
-- rows of shared holds from the last to the first, so that the next row that InnoDB locks is p, and not
-- that of the following name. The condition on p prevents a server from reading them before p. The
-- statement does not wait for their locks. On MariaDB, NOWAIT also applies to p.
--
-- | row of a shared hold                 | own lease | nobody holds the name |
-- |--------------------------------------|-----------|-----------------------|
-- | released, or ended by force or claim | has ended | yes                   |
-- | kept for a minimum time              | runs      | no                    |
-- | kept for a minimum time              | has ended | yes                   |
-- | owned: the owner may extend it       |           | no                    |
((
  SELECT q.name FROM {t} AS q FORCE INDEX (PRIMARY)
  WHERE q.name > {first} AND q.name < {last} AND p.mode <> 0 AND (q.owner >= _ascii'0' OR q.expires_at > {>now})
  ORDER BY q.name DESC LIMIT 1 FOR UPDATE NOWAIT
) IS NULL)
