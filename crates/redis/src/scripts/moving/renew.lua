-- moving/renew.lua: renew.lua while the slot moves to another node: by the lock's key alone.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] who      the token, or `=` and the shared owner
-- ARGV[3] ttl      in milliseconds, from now
-- ARGV[4] shared   there once the share of a shared owner is renewed
--
-- Returns {token, 'renewed', flag}, {token, 'gone'} or {token, 'next', ''} (renew our share first)
-- Retry   safe: it is the same or later
-- Slots   one. Who took it by force may be written on the other node: gone is all that is known
local lock, token, who, ttl = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

-- A key of another type is not ours either.
local value = redis.pcall('GET', lock)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local ours = type(value) == 'string' and string.match(value, '^[-*]t1:[^:]*:([^:]*):') == who
if not ours then return { token, 'gone' } end
if who ~= token and not ARGV[4] then return { token, 'next', '' } end

-- The holder relies on what it was granted, which may be more than it asks for now.
if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, ttl) end
return { token, 'renewed', string.sub(value, 1, 1) }
