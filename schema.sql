-- Each row is a lock, the shared hold of a process, a slot of a semaphore, or the session of a
-- process. Only the library may write to the table. This query lists what is held, by whom, and
-- until when:
--   SELECT l.name_text, IF(l.holder = '', p.holder, l.holder) AS holder, l.acquired_at, GREATEST(l.expires_at, COALESCE(s.expires_at, l.expires_at)) AS expires_at,
--     CASE WHEN LOCATE(x'0072', l.name) THEN 'shared' WHEN LOCATE(x'0073', l.name) THEN CONCAT('slot ', 0 + RIGHT(l.name, 5))
--       ELSE 'exclusive' END AS held
--   FROM mysqllock AS l LEFT JOIN mysqllock AS p ON p.name = CONCAT(x'00', LEFT(l.owner, 19))
--     LEFT JOIN mysqllock AS s ON s.name = p.name AND s.session = l.session
--   WHERE l.owner <> '' AND l.mode <> 1 AND (l.expires_at > UTC_TIMESTAMP(6) OR s.expires_at > UTC_TIMESTAMP(6));
CREATE TABLE IF NOT EXISTS mysqllock (
  name        VARBINARY(300)  NOT NULL
              COMMENT 'key of the row: the name of a lock, byte by byte; a name, x''00'' and a suffix: a shared hold (r), a semaphore or one of its slots (s); x''00'' and the id of a process: its session; empty: the row that has the highest token that Purge deleted',
  mode        TINYINT UNSIGNED NOT NULL DEFAULT 0
              COMMENT 'of a lock: 1 while it may be held shared, 2 while its exclusive holder is making it shared, otherwise 0',
  owner       VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT ''
              COMMENT 'id of the acquisition: process, dash, random text; an equals sign replaces the dash if the release by the last holder granted the lock; the first character is a dash after a release, a plus while the lock stays taken for a minimum time, an at sign while it is detached',
  holder      VARCHAR(255)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ''
              COMMENT 'label of the process that holds or last held the lock (WithIdentity, WithHolder); empty in the first seconds after a release has granted the lock: then the session row of that process has the label',
  holds       INT UNSIGNED    NOT NULL DEFAULT 0
              COMMENT 'open handles of the acquisition when the row was last written',
  token       BIGINT UNSIGNED NOT NULL DEFAULT 0
              COMMENT 'fencing token, the first of 256 that the process may use while it hands the lock over internally; rises with every change of owner and never falls; of a shared hold: the token of its name with bit 62 set; of a session: the id of the process',
  acquired_at DATETIME(6)     NOT NULL DEFAULT '1970-01-01'
              COMMENT 'UTC, by the clock of this server, like expires_at and released_at',
  session     BIGINT UNSIGNED NOT NULL DEFAULT 0
              COMMENT 'number of the session that keeps the lock beyond expires_at, or 0; in the row of a session: its own number',
  expires_at  DATETIME(6)     NOT NULL DEFAULT '1970-01-01'
              COMMENT 'end of the lease: the lock is held, or the session alive, while this is in the future; a lock is also held while its session is alive',
  released_at DATETIME(6)     NOT NULL DEFAULT '1970-01-01'
              COMMENT 'the last release; unchanged when a lease expires; of a session: when one of its locks was last freed by force',
  waiters     VARCHAR(1024)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT ''
              COMMENT 'wait queue: ids of the waiting processes, 19 digits each, in order of arrival; a release may grant the lock to one whose id begins with 7 or 8',
  name_text   VARCHAR(255)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
              GENERATED ALWAYS AS (CONVERT(SUBSTRING_INDEX(name, x'00', 1) USING utf8mb4)) VIRTUAL
              COMMENT 'name of the lock or semaphore as text, for people',
  PRIMARY KEY (name),
  -- A guarded transaction locks the row's entry in this index (and, on MariaDB under
  -- REPEATABLE READ, the gap before it). A change of owner must move that entry, so it
  -- waits for the transaction; a renewal does not.
  UNIQUE KEY guard (token, name),
  -- By this index, a process compares the rows that its session keeps with the locks that it holds.
  KEY session (session)
) ENGINE = InnoDB
