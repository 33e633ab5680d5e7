-- Joins the wait queue of a semaphore. The statement waits while a transaction has the queue's row
-- locked.
--
-- | row                                      | written                                  | answer |
-- |------------------------------------------|------------------------------------------|--------|
-- | missing                                  | the row, with {enlist}                   | 1      |
-- | this process is not listed, and has room | {enlist} at the end of the queue, expiry | 2      |
-- | this process is listed                   | expiry                                   | 2      |
-- | the queue is full                        | expiry                                   | 2      |
-- | any, while autocommit is off             | nothing                                  | 0      |
--
-- Nobody holds the row. Its lease lasts until a month after it was last used, so that until then Purge
-- does not delete it, and no statement mistakes it for a free lock. Its token is as high as those of
-- new grants, because on MariaDB the guard of the lowest token also locks the gap below it. By the comment in
-- the statement, executes recognizes it.
INSERT {>brief_wait} INTO {t} (name, token, expires_at, waiters)
SELECT {name}, {>now_micros} + 0 * LAST_INSERT_ID(1), {>now} + INTERVAL 30 DAY, {enlist}
FROM (SELECT @@autocommit AS trusted /* {owner} */) AS s WHERE s.trusted
ON DUPLICATE KEY UPDATE
  holds = {t}.holds + 0 * LAST_INSERT_ID(2),
  waiters = IF({>listed} OR LENGTH({r}waiters) > 1000, {r}waiters, CONCAT({r}waiters, {enlist})),
  expires_at = {>now} + INTERVAL 30 DAY
