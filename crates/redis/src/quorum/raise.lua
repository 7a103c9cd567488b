-- raise.lua: write the fence of a claim back, if this node's vote is still the one that was counted.
--
-- KEYS[1] lock     string, flag + version + claim + round; absent means free
-- KEYS[2] fence    string, the last number given out, in 1/256 ms since 2025
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] body     what the lock holds, without its flag, while the vote of this round is ours
-- ARGV[3] number   the fence: every later vote here has a higher number
--
-- Returns 'token raised' or 'token gone' (the vote has ended, or is of another round)
-- Retry   safe: the count is as high already
-- Slots   one: all keys are of one lock, but for the fence
local token, number = ARGV[1], tonumber(ARGV[3])
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
if type(value) ~= 'string' or string.sub(value, 2) ~= ARGV[2] then return token .. ' gone' end

-- A count that is none is found out by the next vote.
local last = redis.call('GET', KEYS[2])
if (tonumber(last or '0') or number) < number then redis.call('SET', KEYS[2], ARGV[3]) end
return token .. ' raised'
