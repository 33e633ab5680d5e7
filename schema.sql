-- One row is one lock, the shared hold of one process, a slot of a semaphore, or the session of
-- one process. Only the library writes here; people on call may read the holders of each, and until
-- when:
--   SELECT l.name_text, IF(l.holder = '', p.holder, l.holder) AS holder, l.acquired_at, GREATEST(l.expires_at, COALESCE(s.expires_at, l.expires_at)) AS expires_at,
--     CASE WHEN LOCATE(x'0072', l.name) THEN 'shared' WHEN LOCATE(x'0073', l.name) THEN CONCAT('slot ', 0 + RIGHT(l.name, 5))
--       ELSE 'exclusive' END AS held
--   FROM mysqllock AS l LEFT JOIN mysqllock AS p ON p.name = CONCAT(x'00', LEFT(l.owner, 19))
--     LEFT JOIN mysqllock AS s ON s.name = p.name AND s.session = l.session
--   WHERE l.owner <> '' AND l.mode <> 1 AND (l.expires_at > UTC_TIMESTAMP(6) OR s.expires_at > UTC_TIMESTAMP(6));
CREATE TABLE IF NOT EXISTS mysqllock (
  name        VARBINARY(300)  NOT NULL
              COMMENT 'the lock, byte by byte; with x''00'' and a suffix: r, a shared hold of it, s, a semaphore or its slot; x''00'' and the id of a process: its session; empty: the row with the highest token that Purge deleted',
  mode        TINYINT UNSIGNED NOT NULL DEFAULT 0
              COMMENT 'of a lock: 1 while it may be held shared, 2 while its exclusive holder begins to share it, otherwise 0',
  owner       VARCHAR(64)     CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT ''
              COMMENT 'id of the acquisition: process, dash, random text, with an equals sign in place of the dash if the release of the last holder has made it; begins with a dash when released, with a plus while the lock stays taken after that, with an at sign while it is detached',
  holder      VARCHAR(255)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ''
              COMMENT 'label of the process that holds or last held the lock (WithIdentity, WithHolder); empty for the first seconds after a release has granted the lock: see the row of the session of its process',
  holds       INT UNSIGNED    NOT NULL DEFAULT 0
              COMMENT 'handles open on the acquisition, as of the last write to the row',
  token       BIGINT UNSIGNED NOT NULL DEFAULT 0
              COMMENT 'fencing token, the first of 256 that the holder may give out; rises with every change of owner, never falls; of a shared hold, that of its name with bit 62 set; of a session, the process',
  acquired_at DATETIME(6)     NOT NULL DEFAULT '1970-01-01'
              COMMENT 'UTC, by the clock of this server, like expires_at and released_at',
  session     BIGINT UNSIGNED NOT NULL DEFAULT 0
              COMMENT 'the session of the owner''s process that keeps the lock beyond expires_at, 0 if none; in the row of a session, its number',
  expires_at  DATETIME(6)     NOT NULL DEFAULT '1970-01-01'
              COMMENT 'the lock is held, or the session alive, while this lies in the future; a lock also while its session is alive',
  released_at DATETIME(6)     NOT NULL DEFAULT '1970-01-01'
              COMMENT 'the last release; a lease that ran out leaves it as it was; of a session, the last time one of its locks was freed by force',
  waiters     VARCHAR(1024)   CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT ''
              COMMENT 'ids of the processes that wait, 19 digits each, in the order in which they began to; one that begins with 7 or 8 takes grants of a release',
  name_text   VARCHAR(255)    CHARACTER SET utf8mb4 COLLATE utf8mb4_bin
              GENERATED ALWAYS AS (CONVERT(SUBSTRING_INDEX(name, x'00', 1) USING utf8mb4)) VIRTUAL
              COMMENT 'the lock or semaphore, for people',
  PRIMARY KEY (name),
  -- A guarded transaction locks its entry of this index (and, on MariaDB under
  -- REPEATABLE READ, the gap before it). A change of owner must move that
  -- entry and waits; a renewal need not.
  UNIQUE KEY guard (token, name),
  -- A process compares the rows that its session keeps with the locks that it holds.
  KEY session (session)
) ENGINE = InnoDB
