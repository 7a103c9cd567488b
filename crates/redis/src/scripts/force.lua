-- force.lua: take the lock from the claim that an operator saw holding it, and tell its holder.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] fence    string, the last number given out
-- KEYS[3] queue    sorted set, the places of those who wait, by ticket
-- KEYS[4] beats    hash, the heartbeats of those who have waited for a while
-- KEYS[5] holders  sorted set, the tokens of a shared owner by the end of their lease
-- KEYS[6] forced   string, who took it; for the holder's next renewal to find
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] by       who, and why
-- ARGV[3] inbox    what the names of inboxes start with
--
-- Returns {token, 'freed'}, {token, 'still', n} (n others of its owner hold on) or
--         {token, 'not_held'} (a newer claim's, or nobody's)
-- Retry   safe: the second run finds another claim or none and answers not_held
-- Slots   one: all keys are in that of the lock
local lock, fence, queue, beats, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, inbox = ARGV[1], ARGV[3]

--@include fence.lua
--@include queue.lua

local value = redis.pcall('GET', lock)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local client, who
if type(value) == 'string' then
  client, who = string.match(value, '^[-*]t1:([^:]*):([^:]*):')
end
local shared = who and string.sub(who, 1, 1) == '=' and redis.call('ZSCORE', holders, token)
if who ~= token and not shared then return { token, 'not_held' } end

-- The holder looks again before its lease would have ended; after that nobody asks.
redis.call('SET', KEYS[6], ARGV[2], 'PX', math.max(redis.call('PTTL', lock), 1000))
tell(client, table.concat({ 'forced', token, lock }, ':') .. '\n' .. ARGV[2])
if shared then
  redis.call('ZREM', holders, token)
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', clock())
  local others = redis.call('ZCARD', holders)
  if others > 0 then
    last_as_long_as_the_last()
    return { token, 'still', others }
  end
end
local passed, next = pcall(hand_over)
if not (passed and next) then redis.call('DEL', lock) end
return { token, 'freed' }
