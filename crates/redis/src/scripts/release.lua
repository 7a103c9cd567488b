-- release.lua: give the lock back, or keep it closed to everyone for a while.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] closed   for how many milliseconds nobody may have it; 0 frees it
--
-- Returns {token, 'freed'} or {token, 'not_held'} (expired, or taken by another)
-- Retry   safe: the second run finds the lock gone or closed and answers not_held
-- Slots   one key
local token, closed = ARGV[1], tonumber(ARGV[2])

-- A key of another type is not ours either.
local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local ours = type(value) == 'string' and string.match(value, '^[-*]t1:[^:]*:(%x+):')
if ours ~= token then return { token, 'not_held' } end

if closed == 0 then
  redis.call('DEL', KEYS[1])
else
  -- Without its token, so that nobody can release it again; the words for people stay.
  local rest = string.match(value, '^[-*]t1:[^:]*:%x+:(.*)$')
  redis.call('SET', KEYS[1], '-t1:closed::' .. rest, 'PX', closed)
end
return { token, 'freed' }
