-- acquire.lua: acquire the lock and the next fence, or enter its queue, or report the holder.
--
-- KEYS[1] lock        string, flag + version + claim; or a sorted set, see value.lua; absent means free
-- KEYS[2] fence       string, the last fence, in 1/256 ms since 2025
-- KEYS[3] queue       sorted set, the entries of the waiters, by ticket
-- KEYS[4] heartbeats  hash, the heartbeats of waiters that have waited for half a second or more, or poll
-- KEYS[5] holders     sorted set, the tokens of a shared owner by the end of their lease
-- ARGV[1] token       of the claim, echoed first in every reply
-- ARGV[2] who         the token, or `=` and the shared owner, or the mode of a claim that shares the lock: `~`, `#w/c`
-- ARGV[3] entry       the claim's entry in the queue, see entry.lua
-- ARGV[4] ttl         in milliseconds
-- ARGV[5] fenced      '1', or '0' for a grant without a fence
-- ARGV[6] wait_mode   '' does not wait; 'push' waits with an inbox, 'poll' without
-- ARGV[7] alive_ms    how long, in milliseconds, this heartbeat proves that the claim is alive
-- ARGV[8] inbox       the prefix of the names of inboxes
-- ARGV[9] flag        only in the second step while the slot moves (KEYS has only the fence): the flag that the
--                     first step returned
--
-- While the slot moves to another node, the script runs in two steps with one key each. The first step has the lock,
-- and acquires it if it is free, since the queue may be on the other node. The second step has the fence. See
-- slot_migration.rs.
--
-- Returns {token, 'granted', fence, flag, slot}            acquired now or before; the slot of a numbered permit
--         {token, 'next', flag}                            the same in the first step: draw the fence next
--         'token queued pttl position stamp value'         held by another claim, and we wait
--         {token, 'held', value, pttl}                     held by another claim, and we do not wait
--         {token, 'type', key} {token, 'endless', value} {token, 'count', fence}   refused
--         TRYAGAIN                                         a lock that is shared or held together needs all keys
-- Retry   safe: the second run finds the lock ours and grants it again, with a higher fence; or finds our entry
--         and keeps its position
-- Slots   one: all keys are in the slot of the lock
local lock, fence, queue, heartbeats, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, who, entry, ttl, wait_mode = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[6]
local shared, inbox, single_key = string.sub(who, 1, 1) == '=', ARGV[8], #KEYS == 1
local joins, has_slots = string.find(who, '^[~#]'), string.find(inbox, '}:$')

local together = not ARGV[9] and redis.call('TYPE', lock).ok == 'zset'
--@include value.lua
if wrong_type and not ARGV[9] then return { token, 'type', lock } end
--@include notify.lua
--@include queue.lua

if ARGV[9] then
  fence = KEYS[1]
  local number, refusal = next_fence()
  return number and { token, 'granted', number, ARGV[9] } or refusal
end
if single_key and (shared or joins or together) then
  return redis.error_reply('TRYAGAIN a lock that is shared has several keys')
end
read_holders()
if held == 'foreign' then return { token, 'type', lock } end

-- The fence of this grant.
local function fence_of_ours()
  if ARGV[5] == '0' or single_key then return '0' end
  return next_fence()
end

local function granted(number, flag, slot)
  if single_key and ARGV[5] ~= '0' then return { token, 'next', flag } end
  return { token, 'granted', number, flag, slot }
end

-- Writes our heartbeat: until when we count as alive, and how we are notified. Within half a second of our
-- ticket the ticket proves that we are alive. Then a waiter with an inbox writes nothing, and removes the
-- heartbeat that it may have left as a polling waiter.
local function beat(age, time)
  if wait_mode == 'push' and math.abs(age) < FIRST_HEARTBEAT_AFTER then
    return redis.call('HDEL', heartbeats, token)
  end
  local alive_until = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[7]
  redis.call('HSET', heartbeats, token, string.format('%d', alive_until) .. ' ' .. wait_mode)
  redis.call('PEXPIRE', heartbeats, '3600000')
end

-- A holder that keeps us out, as the value of a lock, and how long it stays: the first to end of several.
local function in_the_way()
  if not together then return value, redis.call('PTTL', lock) end
  local first = redis.call('ZRANGE', lock, '0', '0', 'WITHSCORES')
  local claim, client, about = string.match(first[1] or '', '^!?(%x+) (%x+) [^:]*(:.*)$')
  local left = math.max(first[2] - lease_clock(), 0)
  return '*t1:' .. (client or '') .. ':' .. (claim or '') .. ':' .. (about or '') .. '::', left
end

-- Notifies the holders of a lock that is held together that a claim waits now. The others find out by their renewals.
local function notify_holders()
  for _, member in ipairs(redis.call('ZRANGE', lock, '0', '255')) do
    local claim, client = string.match(member, '^(%x+) (%x+) ')
    if claim then notify(client, 'contended:' .. claim .. ':' .. lock) end
  end
end

-- Another claim holds the lock: enters its queue, if we wait at all.
local function wait()
  local value, left = in_the_way()
  if left < 0 and not together then return { token, 'endless', value } end
  -- A value of another form is never changed, and its holder will not notify us.
  if wait_mode == '' or not (holder or together) or single_key then return { token, 'held', value, left } end

  -- The stamp of this heartbeat: every later grant has a higher number.
  local stamp, refusal, time, now = next_fence()
  if not stamp then return refusal end
  local added = redis.call('ZADD', queue, 'NX', stamp, entry)
  beat(now - (added == 1 and stamp or redis.call('ZSCORE', queue, entry)), time)
  local before = redis.call('ZRANK', queue, entry)
  -- The queue lives one hour. To save a command, not every waiter extends it. These do: the first waiter, every
  -- heartbeat after a waiter's first, polling waiters, and waiters in the first two seconds of a minute. That is
  -- enough: if no waiter stays until its second heartbeat, a new one comes within any two seconds, or the queue is
  -- empty and deleted.
  if added == 0 or before == 0 or wait_mode == 'poll' or time[1] % 60 < 2 then
    redis.call('PEXPIRE', queue, '3600000')
  end
  if together then
    if added == 1 and before == 0 then notify_holders() end
  elseif flag == '-' and holder ~= '' then
    redis.call('SET', lock, '*' .. string.sub(value, 2), 'KEEPTTL')
    notify(client, 'contended:' .. holder .. ':' .. lock)
  end
  return token .. ' queued ' .. left .. ' ' .. before + 1 .. ' ' .. stamp .. ' ' .. value
end

-- A build without readers and permits took a mode for a shared owner: its value is never ours to join.
if value and (joins or holder ~= who) then return wait() end
local waits = function() return queue and redis.call('EXISTS', queue) == 1 and '*' or '-' end
if joins and held == string.sub(who, 1, 1) then
  local member = member_of(entry, token, who)
  if member then
    -- Ours already: the reply to the first grant was lost.
    local number, refusal = fence_of_ours()
    if not number then return refusal end
    dequeue(entry)
    extend_members(members_of(token, member), ttl)
    local slot = string.match(member, '^%x+ %x+ %d+ %d+ #%d+/%d+n(%d+):')
    return granted(number, waits(), slot)
  end
end
if not value then
  -- The lock is free, or claims hold it together. Waiters come first. The fence is drawn before anything else: if it
  -- is refused, nothing is left behind. A claim that does not fit those who hold the lock draws none.
  local number, refusal
  if fits(joins and who or '') then
    number, refusal = fence_of_ours()
    if not number then return refusal end
  end
  -- Our last heartbeat may be too old. Write a new one, so that `serve` does not remove our entry.
  if queue and redis.call('ZSCORE', queue, entry) then beat(math.huge, redis.call('TIME')) end
  local passed_over = serve()
  if ours then return { token, 'granted', ARGV[5] == '0' and '0' or ours[1], ours[2], ours[3] } end
  if number and not passed_over and fits(joins and who or '') then
    dequeue(entry)
    -- The waiters that could not be notified still wait: the flag shows this.
    flag = waits()
    return granted(number, flag, grant_to(entry, flag, ttl, number))
  end
  together = held ~= 'alone'
  if together then return wait() end
  value = redis.call('GET', lock)
  flag, client, holder = string.match(value, '^([-*])t1:([^:]*):([^:]*):')
  -- The new holder may be a claim of our shared owner.
  if holder ~= who then return wait() end
end

-- Ours already: the reply to the first grant was lost, or our shared owner holds it. A claim that relies on
-- the longer ttl keeps it.
local left = redis.call('PTTL', lock)
local number, refusal = fence_of_ours()
if not number then return refusal end
-- A hand-over that stopped half-way left our entry in the queue.
dequeue(entry)
if shared then
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', clock())
  redis.call('ZADD', holders, 'GT', clock() + ttl, token)
  redis.call('PEXPIRE', holders, math.max(left, ttl))
end
-- The last field of the value is the fence of the latest grant.
redis.call('SET', lock, string.match(value, '^.*:') .. number, 'PX', math.max(left, ttl))
return granted(number, flag)
