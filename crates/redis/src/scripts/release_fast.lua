-- release_fast.lua: free the lock if it is ours and no claim waits for it.
--
-- KEYS[1] lock          string, flag + version + claim; or a sorted set, see value.lua; absent means free
-- KEYS[2] queue         only of a claim that shares the lock: sorted set, the entries of the waiters, by ticket
-- ARGV[1] owner_prefix  the start of the value while the lock is ours and no claim waits: flag, version, client and
--                       token; echoed first in every reply
-- ARGV[2] member        only of a claim that shares the lock, see value.lua
--
-- Returns 'owner_prefix' (freed) or 'owner_prefix use_full' (any other case: release.lua handles it)
-- Retry   safe: the second run finds the lock gone or held by another claim and answers use_full
-- Slots   one: all keys are in the slot of the lock
if ARGV[2] then
  local alone = redis.call('EXISTS', KEYS[2]) == 0 and redis.call('TYPE', KEYS[1]).ok == 'zset'
  local ends = alone and redis.call('ZSCORE', KEYS[1], ARGV[2])
  local time = redis.call('TIME')
  local now = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
  -- The lease of a member may have ended while nobody has asked for the lock.
  if not ends or tonumber(ends) <= now then return ARGV[1] .. ' use_full' end
  redis.call('ZREM', KEYS[1], ARGV[2])
  -- The key ends with the last member that is left.
  local last = tonumber(redis.call('ZREVRANGE', KEYS[1], '0', '0', 'WITHSCORES')[2])
  if last and last < tonumber(ends) then redis.call('PEXPIRE', KEYS[1], string.format('%d', last - now)) end
  return ARGV[1]
end
-- A key of another type gives an error, which is not equal to the owner_prefix either.
if redis.pcall('GETRANGE', KEYS[1], '0', '52') ~= ARGV[1] then return ARGV[1] .. ' use_full' end
redis.call('DEL', KEYS[1])
return ARGV[1]
