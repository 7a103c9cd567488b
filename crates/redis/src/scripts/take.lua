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
-- Slots   one: all keys are in that of the lock
local lock, fence, token = KEYS[1], KEYS[2], ARGV[1]
if redis.call('EXISTS', lock, KEYS[3]) > 0 then return token .. ' more' end

-- The fence first: where there is none to be had, nothing is left behind.
--@include clock.lua
local last = redis.pcall('SET', fence, text, 'GET')
local count = type(last) == 'string' and #last < 17 and not string.find(last, '%D') and tonumber(last)
if not last or count and count < now then
  redis.call('SET', lock, ARGV[2], 'PX', ARGV[3])
  return token .. ' granted ' .. text
end

-- The clock is behind the count, or the count is none.
if type(last) == 'string' then redis.call('SET', fence, last) end
--@include fence.lua
local number, refusal = next_fence()
if not number then return refusal end
redis.call('SET', lock, ARGV[2], 'PX', ARGV[3])
return token .. ' granted ' .. number
