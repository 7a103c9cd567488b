-- take.lua: give this node's vote to a claim where that is plain: nobody has the lock, nobody waits for
-- it. With the number that the claim names, if that suits, else with this node's own.
--
-- KEYS[1] lock     string, flag + version + claim + round; absent means free
-- KEYS[2] fence    string, the last number given out, in 1/256 ms since 2025
-- KEYS[3] queue    sorted set, the tokens that wait, by ticket
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] value    what the lock is to hold
-- ARGV[3] ttl      in milliseconds
-- ARGV[4] want     the number that would suit, the same for all nodes
--
-- Returns 'token granted number'                           the vote is ours
--         'token more'                                     not plain: vote.lua finds out
--         {token, 'type', key} {token, 'count', fence}     refused
-- Retry   safe: the second run finds the vote given and answers more; vote.lua then gives it again
-- Slots   one: all keys are of one lock, but for the fence
local lock, fence, token, want = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[4])
if redis.call('EXISTS', lock, KEYS[3]) > 0 then return token .. ' more' end

-- What suits all nodes spares the claim to write it back. Ahead of the clock (as in clock.lua), but no
-- more than 50 ms: the clock has to make up for a count that is lost.
local at = redis.call('TIME')
local ahead = want - (at[1] - 1735689600) * 256000 - at[2] * 0.256
if ahead > 0 and ahead < 12800 then
  -- The number first: where it cannot be had, nothing is left behind.
  local last = redis.pcall('SET', fence, ARGV[4], 'GET')
  local count = type(last) == 'string' and #last < 17 and not string.find(last, '%D') and tonumber(last)
  if not last or count and count < want then
    redis.call('SET', lock, ARGV[2], 'PX', ARGV[3])
    return token .. ' granted ' .. ARGV[4]
  end
  -- The count is as high already, or is none.
  if type(last) == 'string' then redis.call('SET', fence, last) end
end

--@include fence.lua
local number, refusal = next_fence()
if not number then return refusal end
redis.call('SET', lock, ARGV[2], 'PX', ARGV[3])
return token .. ' granted ' .. number
