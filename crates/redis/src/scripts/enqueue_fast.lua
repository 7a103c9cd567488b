-- enqueue_fast.lua: acquire the lock if it is free and its queue is empty; enter its queue if another claim
-- holds it.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- KEYS[2] fence    string, the last fence, in 1/256 ms since 2025
-- KEYS[3] queue    sorted set, the entries of the waiters, by ticket
-- ARGV[1] token    of the claim, echoed first in every reply
-- ARGV[2] entry    the claim's entry in the queue, see entry.lua
-- ARGV[3] ttl      in milliseconds
-- ARGV[4] inbox    the prefix of the names of inboxes
--
-- Returns 'token granted fence -'                          acquired
--         'token queued pttl position stamp value'         held by another claim, and we wait
--         'token use_full'                                 any other case: acquire.lua handles it
-- Retry   safe: the second run finds the lock ours, or our entry in the queue, and answers use_full
-- Slots   one: all keys are in the slot of the lock
local lock, fence, queue = KEYS[1], KEYS[2], KEYS[3]
local token, entry = ARGV[1], ARGV[2]
--@constants

-- `client` and `holder` are set only if the flag is `-`: then the holder, also a shared owner, is notified
-- below that another claim waits now.
-- `MGET` finds nothing in a key of another type, such as a lock that claims hold together; `GET` would fail, which
-- counts in the statistics of the server.
local value, left, client, holder = redis.call('MGET', lock)[1]
if value then
  local start = string.sub(value, 1, 4)
  if start == '-t1:' then
    client, holder = string.match(value, '^(%x+):([^:]+):', 5)
  end
  -- In a value of ours the token is always at the same offset, see value.lua.
  if not (holder or start == '*t1:') or string.sub(value, 22, 53) == token then
    return token .. ' use_full'
  end
  left = redis.call('PTTL', lock)
end
if value and left < 0 or not value and redis.call('EXISTS', lock, queue) > 0 then
  return token .. ' use_full'
end

-- Our ticket or our fence: every later grant has a higher number.
--@include clock.lua
--@include fence.lua
-- If the counter is ahead of the clock, the ticket does not show our real age. Only acquire.lua writes a heartbeat
-- then (`beat`).
if number ~= text then return token .. ' use_full' end

if not value then
--@include entry.lua
  redis.call('SET', lock, '-' .. theirs .. text, 'PX', ARGV[3])
  return token .. ' granted ' .. text .. ' -'
end

if redis.pcall('ZADD', queue, 'NX', text, entry) ~= 1 then return token .. ' use_full' end
local position = redis.call('ZCARD', queue)
-- Not every new waiter extends the queue: see acquire.lua.
if position == 1 or time[1] % 60 < 2 then redis.call('PEXPIRE', queue, '3600000') end
if holder then
  redis.call('SET', lock, '*' .. string.sub(value, 2), 'KEEPTTL')
  redis.pcall(PUBLISH, ARGV[4] .. client, 'contended:' .. holder .. ':' .. lock)
end
return token .. ' queued ' .. left .. ' ' .. position .. ' ' .. text .. ' ' .. value
