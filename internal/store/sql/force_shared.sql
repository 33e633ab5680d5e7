-- Frees shared holds by force, skipping locked rows. Their tokens are those of a phase that force has
-- already ended.
--
-- | row                        | written                           | counted |
-- |----------------------------|-----------------------------------|---------|
-- | picked                     | freed, its owner id as by force   | yes     |
-- | not picked: see pick_owned | nothing                           | no      |
{>pick_owned}
SET
  l.owner = INSERT(l.owner, 1, 1, _ascii'!'),
  l.holds = 0,
  l.released_at = {>now},
  l.session = 0,
  l.expires_at = '1970-01-01'
