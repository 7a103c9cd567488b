-- acquire.lua: take the lock and the next fence, or stand in its queue, or say who is in the way.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] fence    string, the last number given out, in 1/256 ms since 2025
-- KEYS[3] queue    sorted set, the places of those who wait, by ticket
-- KEYS[4] beats    hash, the heartbeats of those who have waited for a while
-- KEYS[5] holders  sorted set, the tokens of a shared owner by the end of their lease
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] who      the token, or `=` and the shared owner
-- ARGV[3] place    what stands in the queue for it, see queue.lua
-- ARGV[4] ttl      in milliseconds
-- ARGV[5] fenced   '1', or '0' for a grant without a fence
-- ARGV[6] how      '' asks once; 'push' waits with an inbox, 'poll' without
-- ARGV[7] good     for how many milliseconds this heartbeat is good
-- ARGV[8] inbox    what the names of inboxes start with
--
-- Returns {token, 'granted', fence, flag}                  it is ours, anew or still
--         'token queued pttl place stamp value'            it is another's, and we wait
--         {token, 'held', value, pttl}                     it is another's, and we do not
--         {token, 'type', key} {token, 'endless', value} {token, 'count', fence}   refused
-- Retry   safe: the second run finds the lock ours and grants it again, with a higher fence; or finds
--         us waiting and leaves us where we are
-- Slots   one: all keys are in that of the lock
local lock, fence, queue, beats, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, who, place, ttl, how = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[6]
local shared, inbox = string.sub(who, 1, 1) == '=', ARGV[8]

--@include fence.lua
--@include queue.lua

-- The fence that this grant carries.
local function fence_of_ours()
  if ARGV[5] == '0' then return '0' end
  return next_fence()
end

local value = redis.pcall('GET', lock)
if type(value) == 'table' then
  return string.find(value.err, 'WRONGTYPE', 1, true) and { token, 'type', lock } or value
end

-- Says that we are alive, and how we are told. One that has come within half a second says so by its
-- ticket; if it was not to be told until now, that is not so any more.
local function beat(age, time)
  if how == 'push' and age > -128000 and age < 128000 then
    return redis.call('HDEL', beats, token)
  end
  local good = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[7]
  redis.call('HSET', beats, token, string.format('%d', good) .. ' ' .. how)
  redis.call('PEXPIRE', beats, '3600000')
end

-- It is another's: stands in its queue, if we wait at all.
local function wait(flag, client, holder)
  local left = redis.call('PTTL', lock)
  if left < 0 then return { token, 'endless', value } end
  -- A value of another form is never touched, and its holder will not tell us.
  if how == '' or not holder then return { token, 'held', value, left } end

  -- The number that this heartbeat comes at: every later grant has a higher one.
  local stamp, refusal, time, now = next_fence()
  if not stamp then return refusal end
  local added = redis.call('ZADD', queue, 'NX', stamp, place)
  beat(now - redis.call('ZSCORE', queue, place), time)
  local before = redis.call('ZRANK', queue, place)
  -- A queue lasts for an hour after the last sign of life. It is not made to last by every newcomer:
  -- where all are served before their second heartbeat, somebody comes within any two seconds.
  if added == 0 or before == 0 or how == 'poll' or time[1] % 60 < 2 then
    redis.call('PEXPIRE', queue, '3600000')
  end
  if flag == '-' and holder ~= '' then
    redis.call('SET', lock, '*' .. string.sub(value, 2), 'KEEPTTL')
    redis.pcall('PUBLISH', inbox .. client, 'contended:' .. holder .. ':' .. lock)
  end
  return token .. ' queued ' .. left .. ' ' .. before + 1 .. ' ' .. stamp .. ' ' .. value
end

local flag, client, holder
if value then
  flag, client, holder = string.match(value, '^([-*])t1:([^:]*):([^:]*):')
  if holder ~= who then return wait(flag, client, holder) end
end

if not value then
  -- Those who wait come first. The clock freed it, or whoever had it could reach nobody. The fence
  -- before all: where there is none to be had, nothing is left behind.
  local number, refusal = fence_of_ours()
  if not number then return refusal end
  -- Our own heartbeat may be the first for long: it is not to cost us our place.
  if redis.call('ZSCORE', queue, place) then beat(math.huge, redis.call('TIME')) end
  local next, theirs, waited = hand_over()
  if next == token then return { token, 'granted', ARGV[5] == '0' and '0' or theirs, waited } end
  if not next then
    leave(place)
    -- Whoever could not be told still waits: the flag says so.
    flag = redis.call('EXISTS', queue) == 1 and '*' or '-'
    seat(place, flag, ttl)
    return { token, 'granted', number, flag }
  end
  value = redis.call('GET', lock)
  flag, client, holder = string.match(value, '^([-*])t1:([^:]*):([^:]*):')
  -- A mate of ours may have been next.
  if holder ~= who then return wait(flag, client, holder) end
end

-- Ours already: the reply to the first grant was lost, or our owner has it. Whoever relies on the
-- longer ttl keeps it.
local left = redis.call('PTTL', lock)
local number, refusal = fence_of_ours()
if not number then return refusal end
-- A hand-over that stopped half-way has left us in the queue.
leave(place)
if shared then
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', clock())
  redis.call('ZADD', holders, 'GT', clock() + ttl, token)
  redis.call('PEXPIRE', holders, math.max(left, ttl))
end
if left < ttl then redis.call('PEXPIRE', lock, ttl) end
return { token, 'granted', number, flag }
