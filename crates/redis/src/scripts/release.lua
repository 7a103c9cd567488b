-- release.lua: give the lock back: to the next that waits, to nobody, or closed to all for a while.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] fence    string, the last number given out
-- KEYS[3] queue    sorted set, the places of those who wait, by ticket
-- KEYS[4] beats    hash, the heartbeats of those who have waited for a while
-- KEYS[5] holders  sorted set, the tokens of a shared owner by the end of their lease
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] who      the token, or `=` and the shared owner
-- ARGV[3] closed   for how many milliseconds nobody may have it; 0 frees it
-- ARGV[4] inbox    what the names of inboxes start with
-- ARGV[5] place    what stands in the queue for it, if it waits; '' where only the token is known
--
-- Returns {token, 'freed'}, {token, 'still', n} (n others of our owner hold on) or {token, 'not_held'}
--         (expired, or taken by another)
-- Retry   safe: the second run finds the lock gone, closed or another's and answers not_held
-- Slots   one: all keys are in that of the lock
local lock, fence, queue, beats, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, who, closed, inbox = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

-- A key of another type is not ours either.
local value = redis.pcall('GET', lock)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local holder, rest
if type(value) == 'string' then
  -- `rest` is where the words for people start.
  holder, rest = string.match(value, '^[-*]t1:[^:]*:([^:]*):()')
end

--@include fence.lua
--@include queue.lua

-- Whoever gives back waits no more. It may wait: a heartbeat that was under way when it was granted
-- the lock is carried out before this, and where the lock has been another's since, it queues again.
if ARGV[5] ~= '' then pcall(leave, ARGV[5]) else pcall(leave_by_token, token) end
-- Whoever gives back what nobody wanted knows its token only, which may be that of a share.
if holder and string.sub(holder, 1, 1) == '=' and who == token then who = holder end
if holder ~= who then return { token, 'not_held' } end
if who ~= token then
  local ours = redis.call('ZREM', holders, token)
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', clock())
  local others = redis.call('ZCARD', holders)
  if others > 0 and ours == 1 then
    last_as_long_as_the_last()
    return { token, 'still', others }
  end
  if ours == 0 then return { token, 'not_held' } end
end

if closed > 0 then
  -- Without its token, so that nobody can release it again; the words for people stay.
  redis.call('SET', lock, '-t1:closed::' .. string.sub(value, rest), 'PX', closed)
  pcall(rouse)
  return { token, 'freed' }
end
-- Whatever is wrong with the queue, what is ours can be given back.
local passed, next = pcall(hand_over)
if not (passed and next) then redis.call('DEL', lock) end
return { token, 'freed' }
