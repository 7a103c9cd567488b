-- take.lua: take the lock and the next fence where that is plain: nobody has it, nobody waits for it.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] fence    string, the last number given out, in 1/256 ms since 2025
-- KEYS[3] queue    sorted set, the tokens that wait, by ticket
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] value    what the lock is to hold
-- ARGV[3] ttl      in milliseconds
--
-- Returns 'token granted fence'                            it is ours
--         'token more'                                     not plain: acquire.lua finds out
--         {token, 'type', key} {token, 'count', fence}     refused
-- Retry   safe: the second run finds the lock ours and answers more; acquire.lua then grants it again
-- Slots   one: all keys are of one lock, but for the fence
local lock, fence, token = KEYS[1], KEYS[2], ARGV[1]

--@include fence.lua

if redis.call('EXISTS', lock, KEYS[3]) > 0 then return token .. ' more' end
-- The fence first: where there is none to be had, nothing is left behind.
local number, refusal = next_fence()
if not number then return refusal end
redis.call('SET', lock, ARGV[2], 'PX', ARGV[3])
return token .. ' granted ' .. number
