-- force.lua: take the lock from the claim that an operator saw, and leave word for its holder.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] forced   string, who took it; for the holder's next renewal to find
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] by       who, and why
--
-- Returns {token, 'freed'} or {token, 'not_held'} (a newer claim's, or nobody's)
-- Retry   safe: the second run finds another claim or none and answers not_held
-- Slots   two keys: one server only
local token = ARGV[1]

local value = redis.pcall('GET', KEYS[1])
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local ours = type(value) == 'string' and string.match(value, '^[-*]t1:[^:]*:(%x+):')
if ours ~= token then return { token, 'not_held' } end

-- The holder looks again before its lease would have ended; after that nobody asks.
redis.call('SET', KEYS[2], ARGV[2], 'PX', math.max(redis.call('PTTL', KEYS[1]), 1000))
redis.call('DEL', KEYS[1])
return { token, 'freed' }
