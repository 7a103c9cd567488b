-- free.lua: take this node's vote back, if it is the claim's, and have one that waits ask.
--
-- KEYS[1] lock     string, flag + version + claim + round; absent means free
-- KEYS[2] queue    sorted set, the tokens that wait, by ticket
-- KEYS[3] beats    hash, their heartbeats
-- KEYS[4] forced   string, who took it; for the holder's next renewal to find
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] body     what the lock holds, without its flag, in the round that is given up; '' if the
--                  claim is, and with it its place in the queue
-- ARGV[3] closed   for how many milliseconds nobody may have it; 0 frees it
-- ARGV[4] by       who takes it by force, and why; '' for the holder itself
-- ARGV[5] inbox    what the names of inboxes start with
--
-- Returns 'token freed' or 'token not_held' (expired, another's, or of another round)
-- Retry   safe: the second run finds the lock gone, closed or another's and answers not_held
-- Slots   two: the word left for the holder is not of the lock
local lock, queue, beats = KEYS[1], KEYS[2], KEYS[3]
local token, body, closed, by, inbox = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

-- A key of another type is not ours either.
local value = redis.pcall('GET', lock)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local client, holder, rest
if type(value) == 'string' then
  client, holder, rest = string.match(value, '^[-*]t1:([^:]*):([^:]*):(.*)$')
end

-- A round that is given up is one of several: whoever waits stays in the queue, and whoever denied us
-- asks by itself, after a pause of its own. Waking them all would have them meet again.
if body ~= '' then
  if holder ~= token or string.sub(value, 2) ~= body then return token .. ' not_held' end
  redis.call('DEL', lock)
  return token .. ' freed'
end

-- What the lock becomes: closed without its token, so that nobody can release it again, but with the
-- words for people; or free.
local function set_free()
  if closed > 0 then
    redis.call('SET', lock, '-t1:closed::' .. rest, 'PX', ARGV[3])
  else
    redis.call('DEL', lock)
  end
  return token .. ' freed'
end

local waited = redis.call('EXISTS', queue) == 1
if not waited and by == '' then
  return holder == token and set_free() or token .. ' not_held'
end
--@include queue.lua
if waited and by == '' then pcall(leave, token) end
if holder ~= token then return token .. ' not_held' end
if by ~= '' then
  -- The holder looks again before its lease would have ended; after that nobody asks.
  local left = math.max(redis.call('PTTL', lock), 1000)
  redis.call('SET', KEYS[4], by, 'PX', string.format('%.0f', left))
  tell(client, table.concat({ 'forced', token, lock }, ':') .. '\n' .. by)
end
local freed = set_free()

-- The first that can be told, and only that one: a herd would share the votes among it.
local function next_asks()
  local now = clock()
  for _, waiter in ipairs(redis.call('ZRANGE', queue, 0, 31)) do
    local beat = redis.call('HGET', beats, waiter) or ''
    local good, how, their = string.match(beat, '^(%d+) (%a+) %d+ t1:([^:]*):')
    local message = table.concat({ 'ask', waiter, lock }, ':')
    if not good or tonumber(good) < now then
      leave(waiter)
    elseif how == 'push' and listens(their) and tell(their, message) then
      return
    end
  end
end
if waited then pcall(next_asks) end
return freed
