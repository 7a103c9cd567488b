-- acquire.lua: take a free lock and the next fence, or say who is in the way.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] fence    string, the last number given out, in 1/256 ms since 2025
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] value    what the lock is to hold
-- ARGV[3] ttl      in milliseconds
--
-- Returns {token, 'granted', fence, flag}   it is ours, anew or still
--         {token, 'held', value, pttl}      it is another's
--         {token, 'type', key} {token, 'endless', value} {token, 'count', fence}   refused
-- Retry   safe: the second run finds the lock ours and grants it again, with a higher fence
-- Slots   two keys: one server only
local lock, fence, token, ttl = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[3])

-- The last fence + 1, or the clock if that is further on: so it rises through any loss of the count.
-- Lua counts exactly to 2^53; fences end at 2^50.
local function next_fence()
  local time = redis.call('TIME')
  local now = (time[1] * 1000 - 1735689600000) * 256 + math.floor(time[2] * 256 / 1000)
  local last = redis.pcall('SET', fence, string.format('%.0f', math.max(now, 1)), 'GET')
  if not last then return math.max(now, 1) end
  if type(last) == 'table' then return nil, last end
  local number = #last < 17 and string.match(last, '^%d+$') and tonumber(last)
  if number and number < now then return now end
  local sane = number and number < 2 ^ 50 - 1
  redis.call('SET', fence, sane and string.format('%.0f', number + 1) or last)
  return sane and number + 1, { token, 'count', last }
end

local function refuse(refusal)
  local type_error = refusal.err and string.find(refusal.err, 'WRONGTYPE', 1, true)
  return type_error and { token, 'type', fence } or refusal
end

local set = redis.pcall('SET', lock, ARGV[2], 'NX', 'PX', ttl)
if set and set.err then return set end
if set then
  local number, refusal = next_fence()
  if number then return { token, 'granted', string.format('%.0f', number), '-' } end
  -- Nothing is left behind without a fence; an overwrite where even DEL is denied.
  local gone = redis.pcall('DEL', lock)
  if type(gone) == 'table' then redis.call('SET', lock, ARGV[2], 'PX', 1) end
  return refuse(refusal)
end

local value = redis.pcall('GET', lock)
if type(value) == 'table' then return { token, 'type', lock } end
local left = redis.call('PTTL', lock)
if string.match(value, '^[-*]t1:[^:]*:(%x+):') ~= token then
  return { token, left < 0 and 'endless' or 'held', value, left }
end
-- Ours already: the reply to the first grant was lost. Its holder may rely on the longer ttl.
local number, refusal = next_fence()
if not number then return refuse(refusal) end
if left < ttl then redis.call('PEXPIRE', lock, ttl) end
return { token, 'granted', string.format('%.0f', number), string.sub(value, 1, 1) }
