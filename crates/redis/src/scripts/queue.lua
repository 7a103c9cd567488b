-- queue.lua: included after value.lua and notify.lua by scripts that grant the lock to waiters. Needs `lock`, `fence`,
-- `queue`, `heartbeats`, `holders` and `token`.
--
-- A lock that claims hold together is a sorted set at the lock's own key, see value.lua.
--
-- While the slot moves, a script may run with the lock alone: then there is no `queue`, and no waiter is found.
--
-- An entry (entry.lua) never changes during a wait. The part that changes is in `heartbeats`, by token, as
-- `until wait_mode`. A waiter that is notified within half a second has nothing there.

-- The next fence, or nil and the refusal; then the reply of `TIME`, and the clock as a number.
local function next_fence()
--@include clock.lua
--@include fence.lua
  return number, refusal, time, now
end

-- Removes the entry of a claim by its token alone.
local function dequeue_token(waiter)
  for _, entry in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    if string.sub(entry, 1, 32) == waiter then dequeue(entry) end
  end
end

-- Sets the expiry of a shared owner's lock: it ends with the last of the owner's claims.
local function extend_to_longest()
  local last = redis.call('ZREVRANGE', holders, 0, 0, 'WITHSCORES')[2]
  redis.call('PEXPIRE', lock, math.max(last - clock(), 1))
end

-- How the lock is held: `held` is false if it is free, 'alone', '~' for readers, '#' for permits, or 'foreign' for a
-- sorted set of another program, which is never changed. `used` is the number of members.
local held, used

-- Reads how the lock is held, and removes the members whose lease has ended.
local function read_holders()
  held, used = value and 'alone', 0
  if not together then return end
  local first = redis.call('ZRANGE', lock, '0', '0', 'WITHSCORES')
  held = kind_of(first[1]) or 'foreign'
  if held == 'foreign' then return end
  local now = lease_clock()
  if tonumber(first[2]) <= now then redis.call('ZREMRANGEBYSCORE', lock, '-inf', string.format('%d', now)) end
  used = redis.call('ZCARD', lock)
  held = used > 0 and held
end

-- Whether a claim of this mode can hold the lock together with those who hold it.
local function fits(mode)
  if not held then return true end
  if held ~= string.sub(mode, 1, 1) then return false end
  local weight, capacity = string.match(mode, '^#(%d+)/(%d+)')
  return held == '~' or weight and used + weight <= tonumber(capacity)
end

-- The key ends with the last member that is left: see `lease_clock`.
local function remove_members(members)
  local now = lease_clock()
  used = used - redis.call('ZREM', lock, unpack(members))
  held = used > 0 and held
  if held then
    redis.call('PEXPIRE', lock, redis.call('ZREVRANGE', lock, 0, 0, 'WITHSCORES')[2] - now)
  end
end

-- The members of numbered permits, by the token of their claim, and by their slot. They are read once.
local numbered
local function numbered_members()
  if numbered then return numbered end
  numbered = {}
  for _, member in ipairs(redis.call('ZRANGE', lock, '0', '-1')) do
    local claim, slot = string.match(member, '^(!?%x+) %x+ %d+ %d+ #%d+/%d+n(%d+):')
    if slot then numbered[claim], numbered[tonumber(slot)] = member, member end
  end
  return numbered
end

-- The first member of a claim that holds the lock together with others, if it is one of them.
local function member_of(entry, waiter, mode)
  if string.sub(mode, -1) == 'n' then return numbered_members()[waiter] end
  return redis.call('ZSCORE', lock, entry) and entry
end

-- Makes the claim of `entry` one of several holders. Returns the slot of a numbered permit.
local function hold_together(entry, waiter, mode, ttl)
  local slot
  if string.sub(mode, -1) == 'n' then
    local taken = numbered_members()
    slot = 0
    while taken[slot] do slot = slot + 1 end
    entry = string.gsub(entry, '^(%x+ %x+ %d+ %d+ #%d+/%d+n)', '%1' .. slot)
    taken[slot], taken[waiter] = entry, entry
  end
  local members = { entry }
  for more = 2, tonumber(string.match(mode, '^#(%d+)/') or 1) do members[more] = waiter .. '#' .. more end
  extend_members(members, ttl)
  held, used = string.sub(mode, 1, 1), used + #members
  return slot
end

-- Makes the waiter of `entry` a holder for `ttl`, with the fence `number`. Returns the slot of a numbered permit.
local function grant_to(entry, flag, ttl, number)
  local shares = string.match(entry, '^%x+ %x+ %d+ %d+ ([~#][^:]*):')
  if shares then return hold_together(entry, string.sub(entry, 1, 32), shares, ttl) end
  local time = redis.call('TIME')
--@include entry.lua
  if mode ~= '' then
    redis.call('DEL', holders)
    redis.call('ZADD', holders, millis + ttl, waiter)
    redis.call('PEXPIRE', holders, ttl)
  end
  redis.call('SET', lock, flag .. theirs .. number, 'PX', string.format('%d', ttl))
  held = 'alone'
end

-- Undoes `grant_to`, which returned `slot`.
local function ungrant(entry, slot)
  local waiter = string.sub(entry, 1, 32)
  if held == 'alone' then
    redis.call('DEL', lock)
    held = false
  else
    remove_members(members_of(waiter, slot and numbered[slot] or entry))
    if slot then numbered[slot], numbered[waiter] = nil, nil end
  end
end

-- Grants the lock to the waiter of `entry`, and notifies its process `client` if there is one. Returns `fence`,
-- `flag` and slot, or nil if the process could not be notified. The lock is written before the process is notified.
local function try_grant(entry, client, ttl)
  if client and not listens(client) then return nil end
  local number = next_fence()
  if not number then return nil end
  local flag = redis.call('ZCARD', queue) > 1 and '*' or '-'
  local slot = grant_to(entry, flag, ttl, number)
  local message = table.concat({ 'granted', string.sub(entry, 1, 32), number, flag .. (slot or ''), lock }, ':')
  if client and not notify(client, message) then return ungrant(entry, slot) end
  pcall(dequeue, entry)
  return number, flag, slot
end

-- The fence, flag and slot of the claim that runs the script, if `serve` granted it the lock.
local ours

-- Makes the first of these waiters that can be notified ask again.
local function wake(from, to)
  for _, entry in ipairs(redis.call('ZRANGE', queue, from, to)) do
    local client = string.sub(entry, 34, 49)
    local message = table.concat({ 'ask', string.sub(entry, 1, 32), lock }, ':')
    if listens(client) and notify(client, message) then return end
  end
end

-- Grants the lock to the waiters at the front that fit those who hold it, at most 32 at a time. Returns whether a
-- waiter still waits that can be notified: no later claim may pass it. Removes waiters that do not count as alive any
-- more, at most 256 at a time. Then one of the last waiters asks, which is likely to live; it may pass others.
-- A waiter that cannot be notified keeps its entry, since it may be reconnecting; at most 32 of them are skipped.
local function serve()
  if not queue then return false end
  local time, skipped, granted, removed = redis.call('TIME'), 0, 0, 0
  while skipped < 32 do
    if removed == 256 then wake(-32, -1) return false end
    local at = skipped == 0 and '0' or skipped
    local first = redis.call('ZRANGE', queue, at, at, 'WITHSCORES')
    local entry, ticket = first[1], first[2]
    if not entry then return false end
--@include entry.lua
    local beat = alive_ms and redis.call('HGET', heartbeats, waiter)
--@include liveness.lua
    if not till or till < millis then
      dequeue(entry)
      removed = removed + 1
    elseif held and held ~= 'alone' and member_of(entry, waiter, mode) then
      -- A script that stopped half-way left the entry of a holder.
      dequeue(entry)
    elseif not fits(mode) then
      if wait_mode ~= 'push' or listens(their_client) then return true end
      skipped = skipped + 1
    elseif granted == 32 then
      local message = table.concat({ 'ask', waiter, lock }, ':')
      if wait_mode ~= 'push' or notify(their_client, message) then return true end
      skipped = skipped + 1
    else
      -- A polling waiter is not notified: its next request finds the lock and extends it. Until then it gets the
      -- lock only until its heartbeat expires (at least 3 s), so that a dead polling waiter costs the others no
      -- more than that. The claim that runs this script learns of its grant at once and gets its whole ttl.
      local ttl, notified = tonumber(their_ttl), waiter ~= token and their_client
      if notified and wait_mode ~= 'push' then
        ttl, notified = math.min(ttl, math.max(till - millis, 3000)), false
      end
      local number, flag, slot = try_grant(entry, notified, ttl)
      if not number then
        skipped = skipped + 1
      else
        granted = granted + 1
        if waiter == token then ours = { number, flag, slot } end
        -- Nobody can join it.
        if held == 'alone' then return true end
      end
    end
  end
  return false
end
