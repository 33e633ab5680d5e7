-- Reads, without a lock, which process is the head of one of the wait queues {names}.
--
-- | wait queues                 | answer    |
-- |-----------------------------|-----------|
-- | one or more are not empty   | a head    |
-- | all are empty, or missing   | no result |
{>select_brief} CAST({>head} AS UNSIGNED) AS next
FROM {t} FORCE INDEX (PRIMARY) WHERE name IN ({names}) AND waiters <> x'' LIMIT 1
