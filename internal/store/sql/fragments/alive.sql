-- Whether the row is that of session {id} of this process, and the session is alive. An expired session
-- stays dead, because another process may have taken one of its locks.
--
-- | row of this process's session | its lease | alive |
-- |-------------------------------|-----------|-------|
-- | of {id}                       | runs      | yes   |
-- | of {id}                       | has ended | no    |
-- | of another session            |           | no    |
name = {session} AND session = {id} AND expires_at > {>now}
