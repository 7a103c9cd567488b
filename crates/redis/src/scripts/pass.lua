-- pass.lua: give the lock to the next that waits, where that is plain: it is ours alone, and the first in
-- its queue is alive, listens, and will have it alone.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] fence    string, the last number given out
-- KEYS[3] queue    sorted set, the places of those who wait, by ticket
-- KEYS[4] beats    hash, the heartbeats of those who have waited for a while
-- ARGV[1] mark     what its value has after the flag then: version, client and token; echoed first in
--                  every answer
-- ARGV[2] inbox    what the names of inboxes start with
-- ARGV[3] ttl      ours, in milliseconds: what the lock has left where it could not be passed on
--
-- Returns 'mark' (passed on, or freed where nobody waits) or 'mark more' (not plain: release.lua finds
--         out, and finds all as it was)
-- Retry   safe: the second run finds the lock gone or another's and answers more
-- Slots   one: all keys are in that of the lock
local lock, fence, queue, beats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mark, inbox = ARGV[1], ARGV[2]

local value = redis.pcall('GET', lock)
if type(value) ~= 'string' or string.sub(value, 2, 53) ~= mark then return mark .. ' more' end
if string.sub(value, 1, 1) == '-' then
  redis.call('DEL', lock)
  return mark
end
-- From here on nothing may stop half-way.
--@include clock.lua
local first = redis.pcall('ZPOPMIN', queue)
if first.err then return mark .. ' more' end
local place, ticket = first[1], first[2]
-- Whoever waited has gone.
if not place then
  redis.call('DEL', lock, beats)
  return mark
end

-- Of one that has come within the last half second its ticket says enough: it has no heartbeat yet. A
-- ticket ahead of the clock is not plain: the count is no less, see below.
local next, client = string.sub(place, 1, 32), string.sub(place, 34, 49)
local ttl, good, words = string.match(place, '^ (%d+) (%d+) (:.*)$', 50)
local other = ttl and next ~= string.sub(mark, 21)
local counted = other and redis.pcall('PUBSUB', 'NUMSUB', inbox .. client)
local seated
if counted and (counted[2] or 0) > 0 then
  local millis = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
  local age, beat = now - ticket, false
  if age >= 128000 then beat = redis.pcall('HGET', beats, next) end
  local alive = age >= 0 and age < good * 256
  if beat then
    local till = type(beat) == 'string' and string.match(beat, '^(%d+) push$')
    alive = till and tonumber(till) >= millis
  end

  local last = alive and redis.pcall('SET', fence, text, 'GET')
  local count = type(last) == 'string' and #last < 17 and not string.find(last, '%D') and tonumber(last)
  if alive and (not last or count and count < now) then
    local flag = redis.pcall('ZCARD', queue) == 0 and '-' or '*'
    local since = string.format('%d', millis)
    local theirs = flag .. 't1:' .. client .. ':' .. next .. ':' .. since .. words
    local message = 'granted:' .. next .. ':' .. text .. ':' .. flag .. ':' .. lock
    -- The lock is its own before it is told.
    seated = not redis.pcall('SET', lock, theirs, 'PX', ttl).err
    local heard = seated and redis.pcall('PUBLISH', inbox .. client, message)
    if type(heard) == 'number' and heard > 0 then
      -- Nobody waits: nor does whoever has left a heartbeat.
      if flag == '-' then redis.pcall('DEL', beats) elseif beat then redis.pcall('HDEL', beats, next) end
      return mark
    end
  elseif type(last) == 'string' then
    -- The clock is behind the count, or the count is none.
    redis.pcall('SET', fence, last)
  end
end

-- As it was. If even that cannot be done, it comes back by itself with its next heartbeat.
if seated then redis.pcall('SET', lock, value, 'PX', ARGV[3]) end
redis.pcall('ZADD', queue, ticket, place)
redis.pcall('PEXPIRE', queue, '3600000')
return mark .. ' more'
