-- renew.lua: make the lock last longer, never shorter, if it is still ours.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] forced   string, who took it from us; absent unless somebody did
-- KEYS[3] holders  sorted set, the tokens of a shared owner by the end of their lease
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] who      the token, or `=` and the shared owner
-- ARGV[3] ttl      in milliseconds, from now
--
-- Returns {token, 'renewed', flag}, {token, 'gone'} or {token, 'forced', by}
-- Retry   safe: it is the same or later
-- Slots   one: all keys are in that of the lock
local lock, holders, token, who, ttl = KEYS[1], KEYS[3], ARGV[1], ARGV[2], tonumber(ARGV[3])

-- A key of another type is not ours either.
local value = redis.pcall('GET', lock)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local ours = type(value) == 'string' and string.match(value, '^[-*]t1:[^:]*:([^:]*):') == who

if ours and who ~= token then
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  -- Our share of it may have ended while another's goes on.
  local until_then = redis.call('ZSCORE', holders, token)
  ours = until_then and tonumber(until_then) > now
  if ours then
    redis.call('ZADD', holders, 'GT', now + ttl, token)
    if redis.call('PTTL', holders) < ttl then redis.call('PEXPIRE', holders, ttl) end
  end
end
if not ours then
  local by = redis.call('GET', KEYS[2])
  return by and { token, 'forced', by } or { token, 'gone' }
end

-- The holder relies on what it was granted, which may be more than it asks for now.
if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, ttl) end
return { token, 'renewed', string.sub(value, 1, 1) }
