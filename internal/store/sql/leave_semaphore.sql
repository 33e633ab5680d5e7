-- Removes this process, which now has a permit, from the wait queue of a semaphore. The statement waits
-- while a transaction has the queue's row locked. If {overdue} is not empty, it is a head that did not
-- take a free slot in time; if that is still the head, it is removed as in waiters_after_take.
-- By the comment in the statement, executes recognizes it.
--
-- | wait queue                   | written                          | answer                 |
-- |------------------------------|----------------------------------|------------------------|
-- | headed by {overdue}          | without it, without this process | the next process, or 1 |
-- | any other                    | without this process             | the next process, or 1 |
-- | missing                      | nothing                          | 0                      |
-- | any, while autocommit is off | nothing                          | 0                      |
UPDATE {>brief_wait} {t} SET
  holds = holds + 0 * LAST_INSERT_ID(COALESCE(NULLIF(LEFT({>waiters_after_permit}, 19), x''), _ascii'1')),
  waiters = {>waiters_after_permit}
WHERE name = {name} AND @@autocommit /* {owner} */
