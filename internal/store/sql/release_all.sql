-- Frees many rows, skipping locked ones. {owned} also has the ids that the release gives to the
-- rows, for copies of the statement, as in release.
--
-- | row                        | written | counted | answer                               |
-- |----------------------------|---------|---------|--------------------------------------|
-- | picked                     | freed   | yes     | head of one of the wait queues, or 0 |
-- | not picked: see pick_owned | nothing | no      |                                      |
{>pick_owned}
SET {>set_released}
