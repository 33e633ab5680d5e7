-- Frees many rows, skipping locked ones. {owned} also has the owner ids that the release writes, so that
-- a copy of the statement matches, as in release.
--
-- | row                        | written | counted | answer                               |
-- |----------------------------|---------|---------|--------------------------------------|
-- | picked                     | freed   | yes     | head of one of the wait queues, or 0 |
-- | not picked: see pick_owned | nothing | no      |                                      |
{>pick_owned}
SET {>set_released}
