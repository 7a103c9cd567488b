-- moving/beat.lua: release.lua while the slot moves to another node: ends the heartbeat, by its key alone.
--
-- KEYS[1] beats    hash, the heartbeats of those who have waited for a while
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[6] freed    what became of the lock
--
-- Returns {token, freed}
-- Retry   safe: the second run finds nothing to remove
-- Slots   one
redis.pcall('HDEL', KEYS[1], ARGV[1])
return { ARGV[1], ARGV[6] }
