-- moving/leave.lua: release.lua while the slot moves to another node: leaves the queue, by its key alone.
--
-- KEYS[1] queue    sorted set, the places of those who wait, by ticket
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[5] place    what stands in the queue for it, if it waits; '' where only the token is known
-- ARGV[6] freed    what became of the lock
--
-- Returns {token, 'next', freed}
-- Retry   safe: the second run finds nothing to remove
-- Slots   one
local queue, token, place = KEYS[1], ARGV[1], ARGV[5]
-- A key of another type holds no place of ours.
if place ~= '' then
  redis.pcall('ZREM', queue, place)
else
  for _, other in ipairs(redis.pcall('ZRANGE', queue, 0, -1)) do
    if string.sub(other, 1, 32) == token then redis.pcall('ZREM', queue, other) end
  end
end
return { token, 'next', ARGV[6] }
