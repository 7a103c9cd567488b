-- moving/release.lua: release.lua while the slot moves to another node: by the lock's key alone.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] who      the token, or `=` and the shared owner
-- ARGV[3] closed   for how many milliseconds nobody may have it; 0 frees it
--
-- Returns {token, 'next', 'freed'} or {token, 'next', 'not_held'} (expired, or taken by another): leave the
--         queue now
--         TRYAGAIN   a shared owner needs the other keys
-- Retry   safe: the second run finds the lock gone, closed or another's and answers not_held
-- Slots   one. The queue may be on the other node: nobody is told, and those who wait find out by asking
local lock, token, who, closed = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

-- A key of another type is not ours either.
local value = redis.pcall('GET', lock)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local holder, rest
if type(value) == 'string' then
  holder, rest = string.match(value, '^[-*]t1:[^:]*:([^:]*):(.*)$')
end
if holder and string.sub(holder, 1, 1) == '=' and who == token then who = holder end
if holder ~= who then return { token, 'next', 'not_held' } end
if who ~= token then return redis.error_reply('TRYAGAIN a shared owner has several keys') end

if closed > 0 then
  -- Without its token, so that nobody can release it again; the words for people stay.
  redis.call('SET', lock, '-t1:closed::' .. rest, 'PX', closed)
else
  redis.call('DEL', lock)
end
return { token, 'next', 'freed' }
