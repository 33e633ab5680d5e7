-- Whether nobody holds the name of the row p shared. The caller must have locked p. The rows of
-- shared holds are locked from the last to the first: beyond them, InnoDB locks p, and not the
-- name that follows. The condition on p prevents a server from reading them before p. They are
-- not waited for: on MariaDB, NOWAIT applies to p as well.
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
