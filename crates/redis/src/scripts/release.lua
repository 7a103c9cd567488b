-- release.lua: give the lock back: to the next that waits, to nobody, or closed to all for a while.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] fence    string, the last number given out
-- KEYS[3] queue    sorted set, the tokens that wait
-- KEYS[4] beats    hash, their heartbeats
-- KEYS[5] holders  sorted set, the tokens of a shared owner by the end of their lease
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] who      the token, or `=` and the shared owner
-- ARGV[3] closed   for how many milliseconds nobody may have it; 0 frees it
-- ARGV[4] inbox    what the names of inboxes start with
--
-- Returns 'token freed' or {token, 'freed'}, {token, 'still', n} (n others of our owner hold on) or
--         {token, 'not_held'} (expired, or taken by another)
-- Retry   safe: the second run finds the lock gone, closed or another's and answers not_held
-- Slots   one: all keys are in that of the lock
local lock, fence, queue, beats, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, who, closed, inbox = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]

-- A key of another type is not ours either.
local value = redis.pcall('GET', lock)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
local flag, holder, rest
if type(value) == 'string' then
  -- `rest` is where the words for people start.
  flag, holder, rest = string.match(value, '^([-*])t1:[^:]*:([^:]*):()')
end

-- The usual case: ours, and nobody waits.
if holder == token and flag == '-' and closed == 0 then
  redis.call('DEL', lock)
  return token .. ' freed'
end

--@include fence.lua

-- The usual case where several want it: the first in the queue is alive, listens, and has the lock to
-- itself. All that `hand_over` does, and `leave` before it, with the requests that this needs. Where
-- anything is not plain or does not work, nothing counts that was done here: that is for them.
if holder == token and closed == 0 then
  local first = redis.pcall('ZRANGE', queue, '0', '1')
  local next, after = first[1], first[2]
  -- Whoever waited has gone.
  if not (next or first.err) then
    redis.call('DEL', lock)
    return token .. ' freed'
  end
  local ours = next == token or after == token
  local beat = next and not ours and redis.pcall('HGET', beats, next)
  local good, ttl, client, words
  if type(beat) == 'string' then
    good, ttl, client, words = string.match(beat, '^(%d+) push (%d+) t1:(%x+):%x+:%d+()')
  end
  local counted = client and redis.pcall('PUBSUB', 'NUMSUB', inbox .. client)
  if counted and (counted[2] or 0) > 0 then
    local number, _, time = next_fence()
    local now = number and time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
    if number and tonumber(good) >= now then
      local waited = after and '*' or '-'
      local since = string.format('%d', now)
      local theirs = waited .. 't1:' .. client .. ':' .. next .. ':' .. since .. string.sub(beat, words)
      local message = 'granted:' .. next .. ':' .. number .. ':' .. waited .. ':' .. lock
      -- The lock is its own before it is told.
      local seated = redis.pcall('SET', lock, theirs, 'PX', ttl)
      local heard = not seated.err and redis.pcall('PUBLISH', inbox .. client, message)
      if type(heard) == 'number' and heard > 0 then
        redis.pcall('ZREM', queue, next, token)
        redis.pcall('HDEL', beats, next, token)
        return token .. ' freed'
      end
    end
  end
end

--@include queue.lua

-- Whoever gives back waits no more. It may wait: a heartbeat that was under way when it was granted
-- the lock is carried out before this, and where the lock has been another's since, it queues again.
pcall(leave, token)
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
