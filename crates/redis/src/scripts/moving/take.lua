-- moving/take.lua: take.lua while the slot moves to another node: by the lock's key alone.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] value    what the lock is to hold
-- ARGV[3] ttl      in milliseconds
--
-- Returns 'token granted fence' (it is ours) or 'token more' (moving/acquire.lua finds out)
-- Retry   safe: the second run finds the lock ours and answers more
-- Slots   one. The count of fences and the queue may be on the other node: the clock is the fence
local lock, token = KEYS[1], ARGV[1]
if redis.call('EXISTS', lock) > 0 then return token .. ' more' end
--@include clock.lua
redis.call('SET', lock, ARGV[2], 'PX', ARGV[3])
return token .. ' granted ' .. text
