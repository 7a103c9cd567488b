-- raise_fence.lua: write the fence of a claim back, if this node's vote is still the one that was counted.
--
-- KEYS[1] lock     string, flag + version + claim + round; or the votes of readers, see vote.lua; absent means free
-- KEYS[2] fence    string, the last number assigned, in 1/256 ms since 2025
-- ARGV[1] token    of the claim, echoed first in every reply
-- ARGV[2] body     the lock's value while the vote of this round is ours, without its flag and up to its number; of a
--                  reader, its entry and its round
-- ARGV[3] number   the fence: every later vote here has a higher number
--
-- Returns 'token raised' or 'token gone' (the vote has ended, or belongs to another round)
-- Retry   safe: the count is as high already
-- Slots   one: all keys belong to one lock, except the fence
local token, number = ARGV[1], tonumber(ARGV[3])
local lock = KEYS[1]
local together = string.sub(ARGV[2], 1, 3) ~= 't1:'
--@include value.lua
local length = 1 + #ARGV[2]
-- While a reader's entry is there, no writer has had a vote since, even if its time has passed.
local counts = together and redis.call('TYPE', lock).ok == 'zset' and redis.call('ZSCORE', lock, ARGV[2])
  or string.sub(value or '', 2, length) == ARGV[2]
if not counts then return token .. ' gone' end

-- A count that is no number is left to the next vote, which reports it.
local last = redis.call('GET', KEYS[2])
if (tonumber(last or '0') or number) < number then redis.call('SET', KEYS[2], ARGV[3]) end
if value then redis.call('SET', lock, string.sub(value, 1, length) .. ARGV[3], 'KEEPTTL') end
return token .. ' raised'
