-- stand.lua: take the lock where it is plainly free, or stand in its queue where it is plainly another's.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] fence    string, the last number given out, in 1/256 ms since 2025
-- KEYS[3] queue    sorted set, the places of those who wait, by ticket
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] place    what stands in the queue for it, see queue.lua
-- ARGV[3] ttl      in milliseconds
-- ARGV[4] inbox    what the names of inboxes start with
--
-- Returns 'token granted fence -'                          it is ours
--         'token queued pttl place stamp value'            it is another's, and we wait
--         'token more'                                     not plain: acquire.lua finds out
-- Retry   safe: the second run finds the lock ours, or us waiting, and answers more
-- Slots   one: all keys are in that of the lock
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local token, place = ARGV[1], ARGV[2]

-- Whoever holds it alone is told that others wait now; so is an owner that shares it.
local value, left, client, holder = redis.pcall('GET', lock)
if type(value) == 'string' then
  local start = string.sub(value, 1, 4)
  if start == '-t1:' then
    client, holder = string.match(value, '^(%x+):([^:]+):', 5)
  end
  -- In a value of ours the token is always at the same place, see value.rs.
  if not (holder or start == '*t1:') or string.sub(value, 22, 53) == token then
    return token .. ' more'
  end
  left = redis.call('PTTL', lock)
end
if value and not (left and left >= 0) or not value and redis.call('EXISTS', queue) == 1 then
  return token .. ' more'
end

-- The number that we come at: every later grant has a higher one.
--@include clock.lua
local last = redis.pcall('SET', fence, text, 'GET')
local count = type(last) == 'string' and #last < 17 and not string.find(last, '%D') and tonumber(last)
if last and not (count and count < now) then
  -- The clock is behind the count, or the count is none.
  if type(last) == 'string' then redis.call('SET', fence, last) end
  return token .. ' more'
end

if not value then
  local words = string.match(place, '^ %d+ %d+ (:.*)$', 50)
  local since = string.format('%d', time[1] * 1000 + (time[2] - time[2] % 1000) / 1000)
  local ours = '-t1:' .. string.sub(place, 34, 49) .. ':' .. token .. ':' .. since .. words
  redis.call('SET', lock, ours, 'PX', ARGV[3])
  return token .. ' granted ' .. text .. ' -'
end

if redis.pcall('ZADD', queue, 'NX', text, place) ~= 1 then return token .. ' more' end
local before = redis.call('ZCARD', queue)
-- As in acquire.lua: not for every newcomer.
if before == 1 or time[1] % 60 < 2 then redis.call('PEXPIRE', queue, '3600000') end
if holder then
  redis.call('SET', lock, '*' .. string.sub(value, 2), 'KEEPTTL')
  redis.pcall('PUBLISH', ARGV[4] .. client, 'contended:' .. holder .. ':' .. lock)
end
return token .. ' queued ' .. left .. ' ' .. before .. ' ' .. text .. ' ' .. value
