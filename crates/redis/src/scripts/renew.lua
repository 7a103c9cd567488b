-- renew.lua: make the lock last longer, never shorter, if it is still ours.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] forced   string, who took it from us; absent unless somebody did
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] ttl      in milliseconds, from now
--
-- Returns {token, 'renewed', flag}, {token, 'gone'} or {token, 'forced', by}
-- Retry   safe: it is the same or later
-- Slots   two keys: one server only
local token, ttl = ARGV[1], tonumber(ARGV[2])

-- A key of another type is not ours either.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local ours = type(value) == 'string' and string.match(value, '^[-*]t1:[^:]*:(%x+):')
if ours ~= token then
  local by = redis.call('GET', KEYS[2])
  return by and { token, 'forced', by } or { token, 'gone' }
end

-- The holder relies on what it was granted, which may be more than it asks for now.
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
return { token, 'renewed', string.sub(value, 1, 1) }
