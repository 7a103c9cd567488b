-- handover_fast.lua: hand the lock to the first waiter, if the lock is ours and not a shared owner's, and the
-- first waiter is alive, subscribed, and wants the lock alone.
--
-- KEYS[1] lock          string, flag + version + claim; absent means free
-- KEYS[2] fence         string, the last fence
-- KEYS[3] queue         sorted set, the entries of the waiters, by ticket
-- KEYS[4] heartbeats    hash, the heartbeats of waiters that have waited for half a second or more, or poll
-- ARGV[1] owner_prefix  the start of the value, after the flag, while the lock is ours: version, client and token;
--                       echoed first in every reply
-- ARGV[2] inbox         the prefix of the names of inboxes
-- ARGV[3] ttl           ours, in milliseconds: the lock gets it again if it could not be handed over
--
-- Returns 'owner_prefix' (handed over, or freed if no claim waits) or 'owner_prefix use_full' (any other case:
--         release.lua handles it, and finds everything unchanged)
-- Retry   safe: the second run finds the lock gone or held by another claim and answers use_full
-- Slots   one: all keys are in the slot of the lock
local lock, fence, queue, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner_prefix, inbox = ARGV[1], ARGV[2]
local token = string.sub(owner_prefix, -32)
--@constants

local value = redis.pcall('GET', lock)
if type(value) ~= 'string' or string.sub(value, 2, 1 + #owner_prefix) ~= owner_prefix then
  return owner_prefix .. ' use_full'
end
if string.sub(value, 1, 1) == '-' then
  redis.call('DEL', lock)
  return owner_prefix
end
-- From here on an error must not stop the script half-way.
--@include clock.lua
local first = redis.pcall('ZPOPMIN', queue)
if first.err then return owner_prefix .. ' use_full' end
local entry, ticket = first[1], first[2]
-- The queue is empty: every waiter has left.
if not entry then
  redis.call('DEL', lock, heartbeats)
  return owner_prefix
end

-- A waiter that came within the last half second has no heartbeat yet: its ticket proves that it is alive. A
-- ticket ahead of the clock, and a waiter in another mode, are left to release.lua.
--@include entry.lua
local age = now - ticket
local other = mode == '' and age >= 0 and waiter ~= token
-- Sharded channels have no patterns: every subscriber that `SPUBLISH` counts is subscribed to this channel, so no count
-- before it is needed, and we pretend that one was found.
local counted = other and (SHARDED and { inbox, 1 } or redis.pcall('PUBSUB', 'NUMSUB', inbox .. their_client))
local granted
if counted and (counted[2] or 0) > 0 then
  local beat = age >= FIRST_HEARTBEAT_AFTER and redis.pcall('HGET', heartbeats, waiter)
  if beat and beat.err then beat = '' end
--@include liveness.lua
  if till and till >= millis and wait_mode == 'push' then
--@include fence.lua
    local flag = redis.pcall('ZCARD', queue) == 0 and '-' or '*'
    -- The lock is written before the waiter is notified.
    granted = number and not redis.pcall('SET', lock, flag .. theirs .. number, 'PX', their_ttl).err
    local message = granted and 'granted:' .. waiter .. ':' .. number .. ':' .. flag .. ':' .. lock
    local receivers = granted and redis.pcall(PUBLISH, inbox .. their_client, message)
    if type(receivers) == 'number' and receivers > 0 then
      -- The queue is empty, so any remaining heartbeat is stale: delete the hash.
      if flag == '-' then redis.pcall('DEL', heartbeats) elseif beat then redis.pcall('HDEL', heartbeats, waiter) end
      return owner_prefix
    end
  end
end

-- Restore the lock and the queue. If even that fails, the waiter enters the queue again with its next
-- heartbeat.
if granted then redis.pcall('SET', lock, value, 'PX', ARGV[3]) end
redis.pcall('ZADD', queue, ticket, entry)
redis.pcall('PEXPIRE', queue, '3600000')
return owner_prefix .. ' use_full'
