-- acquire_fast.lua: acquire the lock and the next fence if the queue is empty, and the lock is free, or held together
-- by claims that a single reader or permit can join.
--
-- KEYS[1] lock     string, flag + version + claim; or a sorted set, see value.lua; absent means free
-- KEYS[2] fence    string, the last fence, in 1/256 ms since 2025
-- KEYS[3] queue    sorted set, the entries of the waiters, by ticket
-- ARGV[1] token    of the claim, echoed first in every reply
-- ARGV[2] value    the new value of the lock, up to its fence; of a claim that shares the lock, its entry
-- ARGV[3] ttl      in milliseconds
-- ARGV[4] mode     only of a claim that shares the lock: `~`, or `#1/c` for a permit out of c, see entry.lua
--
-- Returns 'token granted fence'                            acquired
--         'token use_full'                                 any other case: acquire.lua handles it
--         {token, 'type', key} {token, 'count', fence}     refused
-- Retry   safe: the second run finds the lock ours and answers use_full, and acquire.lua then grants it again; or it
--         grants it again itself, since a member is found by its entry
-- Slots   one: all keys are in the slot of the lock
local lock, fence, queue, token, mode = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[4]
local held = redis.call('EXISTS', lock, queue) > 0
if held and not (mode and redis.call('EXISTS', queue) == 0 and redis.call('TYPE', lock).ok == 'zset') then
  return token .. ' use_full'
end

--@include clock.lua
local millis = mode and time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
if held then
  local kind = string.match(redis.call('ZRANGE', lock, '0', '0')[1], '^!?%x+ %x+ %d+ %d+ ([~#])')
  if kind ~= string.sub(mode, 1, 1) then return token .. ' use_full' end
  redis.call('ZREMRANGEBYSCORE', lock, '-inf', string.format('%d', millis))
  if kind == '#' and redis.call('ZCARD', lock) >= tonumber(string.sub(mode, 4)) then return token .. ' use_full' end
end

-- The fence is drawn before the lock is written: if it is refused, nothing is left behind.
--@include fence.lua
if not number then return refusal end
if mode then
  redis.call('ZADD', lock, 'GT', string.format('%d', millis + ARGV[3]), ARGV[2])
  if not held or redis.call('PTTL', lock) < tonumber(ARGV[3]) then redis.call('PEXPIRE', lock, ARGV[3]) end
else
  redis.call('SET', lock, ARGV[2] .. number, 'PX', ARGV[3])
end
return token .. ' granted ' .. number
