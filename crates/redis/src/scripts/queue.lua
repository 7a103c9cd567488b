-- queue.lua: included by scripts that pass the lock on. Needs `lock`, `queue`, `beats`, `holders`,
-- `inbox` and `token`, and `next_fence`.

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

local function leave(waiter)
  redis.call('ZREM', queue, waiter)
  redis.call('HDEL', beats, waiter)
end

-- The lock of a shared owner ends with the last of its claims.
local function last_as_long_as_the_last()
  local last = redis.call('ZREVRANGE', holders, 0, 0, 'WITHSCORES')[2]
  redis.call('PEXPIRE', lock, math.max(last - clock(), 1))
end

-- Makes `waiter` the holder. `who` is its token, or its shared owner with a `=` before it.
local function seat(waiter, who, flag, body, ttl)
  if string.sub(who, 1, 1) == '=' then
    redis.call('DEL', holders)
    redis.call('ZADD', holders, clock() + ttl, waiter)
    redis.call('PEXPIRE', holders, ttl)
  end
  redis.call('SET', lock, flag .. body, 'PX', ttl)
end

-- Gives the lock to one that waits: `fence` and `flag`, if it could be told. The lock is its own
-- before it is told; where it was not, the lock is still to be given to somebody or removed.
local function offer(waiter, how, ttl, body)
  local client, who, rest = string.match(body, '^t1:([^:]*):([^:]*):%d+(.*)$')
  if how == 'push' and waiter ~= token and not listens(client) then return nil end
  local number = next_fence()
  if not number then return nil end
  local flag = redis.call('ZCARD', queue) > 1 and '*' or '-'
  local since = string.format('%.0f', clock())
  seat(waiter, who, flag, table.concat({ 't1', client, who, since }, ':') .. rest, ttl)
  local message = table.concat({ 'granted', waiter, number, flag, lock }, ':')
  if how == 'push' and waiter ~= token and not tell(client, message) then return nil end
  pcall(leave, waiter)
  return number, flag
end

-- One that is not told learns of it by asking, which makes it last; if it has died, others need not
-- wait for longer than they would have waited to hear of it. Who asks now has heard.
local function lasts(waiter, how, ttl, rest)
  if how == 'push' or waiter == token then return ttl end
  return math.min(ttl, math.max(rest, 3000))
end

-- Gives the lock to the first waiter that can be reached: who, its fence, the flag; or nil. One that
-- has not been heard of in time is dropped; one that cannot be told keeps its place, since it may be
-- reconnecting, and so many are passed over at most.
local function hand_over()
  local now, unheard = clock(), 0
  while unheard < 32 do
    local waiter = redis.call('ZRANGE', queue, unheard, unheard)[1]
    if not waiter then return end
    local beat = redis.call('HGET', beats, waiter) or ''
    local good, how, ttl, body = string.match(beat, '^(%d+) (%a+) (%d+) (.*)$')
    if not good or tonumber(good) < now then
      leave(waiter)
    else
      local number, flag = offer(waiter, how, lasts(waiter, how, tonumber(ttl), good - now), body)
      if number then return waiter, number, flag end
      unheard = unheard + 1
    end
  end
end

-- Has the first waiter that can be told ask again: what it knows of the lock's end is not so any more.
local function rouse()
  for _, waiter in ipairs(redis.call('ZRANGE', queue, 0, 31)) do
    local beat = redis.call('HGET', beats, waiter) or ''
    local client = string.match(beat, '^%d+ push %d+ t1:([^:]*):')
    local message = table.concat({ 'ask', waiter, lock }, ':')
    if client and listens(client) and tell(client, message) then return end
  end
end
