-- queue.lua: included by scripts that pass the lock on. Needs `lock`, `queue`, `beats`, `holders`,
-- `inbox` and `token`, and `next_fence`.
--
-- A place in the queue is `token client ttl good owner:words`: who waits, in which process, for how long it
-- is to have the lock, for how many milliseconds from its ticket on it is believed to be alive, the owner
-- that it shares the lock with (`=` and a name, or nothing), and the words for people. It is the same for
-- as long as one waits: what changes is in `beats`, as `until how`. One that has waited for less than half
-- a second and is told its turn has nothing there.

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Whether a process listens. Counted by name where that is allowed: `PUBLISH` also counts those who
-- listen to everything and wait for nothing.
local function listens(client)
  local counted = redis.pcall('PUBSUB', 'NUMSUB', inbox .. client)
  return counted.err or counted[2] > 0
end

local function tell(client, message)
  local heard = redis.pcall('PUBLISH', inbox .. client, message)
  return type(heard) == 'number' and heard > 0
end

-- Without its heartbeat, or anybody's where nobody waits any more: pass.lua leaves some behind.
local function leave(place)
  redis.call('ZREM', queue, place)
  if redis.call('EXISTS', queue) == 0 then return redis.call('DEL', beats) end
  redis.call('HDEL', beats, string.sub(place, 1, 32))
end

-- The same for one of whom only the token is known.
local function leave_by_token(waiter)
  for _, place in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    if string.sub(place, 1, 32) == waiter then leave(place) end
  end
end

-- The lock of a shared owner ends with the last of its claims.
local function last_as_long_as_the_last()
  local last = redis.call('ZREVRANGE', holders, 0, 0, 'WITHSCORES')[2]
  redis.call('PEXPIRE', lock, math.max(last - clock(), 1))
end

-- Makes whoever stands at `place` the holder.
local function seat(place, flag, ttl)
  local waiter, client, owner, words = string.match(place, '^(%x+) (%x+) %d+ %d+ ([^:]*)(:.*)$')
  local now = clock()
  if owner ~= '' then
    redis.call('DEL', holders)
    redis.call('ZADD', holders, now + ttl, waiter)
    redis.call('PEXPIRE', holders, ttl)
  end
  local who = owner ~= '' and owner or waiter
  local value = table.concat({ flag .. 't1', client, who, string.format('%.0f', now) }, ':') .. words
  redis.call('SET', lock, value, 'PX', ttl)
end

-- Until when whoever stands at `place` is believed to be alive, and how it is told.
local function alive(place, ticket)
  local waiter, good = string.match(place, '^(%x+) %x+ %d+ (%d+) [^:]*:')
  local beat = waiter and redis.call('HGET', beats, waiter)
  if beat then
    local till, how = string.match(beat, '^(%d+) (%a+)$')
    return tonumber(till), how
  end
  return waiter and ticket / 256 + 1735689600000 + good, 'push'
end

-- Gives the lock to one that waits: `fence` and `flag`, if it could be told. The lock is its own
-- before it is told; where it was not, the lock is still to be given to somebody or removed.
local function offer(place, how, ttl)
  local waiter, client = string.sub(place, 1, 32), string.sub(place, 34, 49)
  if how == 'push' and waiter ~= token and not listens(client) then return nil end
  local number = next_fence()
  if not number then return nil end
  local flag = redis.call('ZCARD', queue) > 1 and '*' or '-'
  seat(place, flag, ttl)
  local message = table.concat({ 'granted', waiter, number, flag, lock }, ':')
  if how == 'push' and waiter ~= token and not tell(client, message) then return nil end
  pcall(leave, place)
  return number, flag
end

-- One that is not told learns of it by asking, which makes it last; if it has died, others need not
-- wait for longer than they would have waited to hear of it. Who asks now has heard.
local function lasts(place, how, rest)
  local waiter, ttl = string.match(place, '^(%x+) %x+ (%d+)')
  if how == 'push' or waiter == token then return tonumber(ttl) end
  return math.min(ttl, math.max(rest, 3000))
end

-- Gives the lock to the first waiter that can be reached: who, its fence, the flag; or nil. One that
-- has not been heard of in time is dropped; one that cannot be told keeps its place, since it may be
-- reconnecting, and so many are passed over at most.
local function hand_over()
  local now, unheard = clock(), 0
  while unheard < 32 do
    local first = redis.call('ZRANGE', queue, unheard, unheard, 'WITHSCORES')
    local place, ticket = first[1], first[2]
    if not place then return end
    local till, how = alive(place, ticket)
    if not till or till < now then
      leave(place)
    else
      local number, flag = offer(place, how, lasts(place, how, till - now))
      if number then return string.sub(place, 1, 32), number, flag end
      unheard = unheard + 1
    end
  end
end

-- Has the first waiter that can be told ask again: what it knows of the lock's end is not so any more.
local function rouse()
  for _, place in ipairs(redis.call('ZRANGE', queue, 0, 31)) do
    local client = string.sub(place, 34, 49)
    local message = table.concat({ 'ask', string.sub(place, 1, 32), lock }, ':')
    if listens(client) and tell(client, message) then return end
  end
end
