-- force.lua: take the lock from the claim that an operator saw as its holder, and notify that claim; or open
-- a lock that this claim released and that is still closed.
--
-- KEYS[1] lock        string, flag + version + claim; or a sorted set, see value.lua; absent means free
-- KEYS[2] fence       string, the last fence
-- KEYS[3] queue       sorted set, the entries of the waiters, by ticket
-- KEYS[4] heartbeats  hash, the heartbeats of waiters that have waited for half a second or more, or poll
-- KEYS[5] holders     sorted set, the tokens of a shared owner by the end of their lease
-- KEYS[6] forced      string, who used force; the holder's next renewal finds it
-- ARGV[1] token       of the claim, echoed first in every reply
-- ARGV[2] by          who uses force, and why
-- ARGV[3] inbox       the prefix of the names of inboxes
--
-- Returns {token, 'freed'}, {token, 'still', n} (n other claims of its owner hold it) or
--         {token, 'not_held'} (free, or held by a newer claim)
-- Retry   safe: the second run finds another claim or none and answers not_held
-- Slots   one: all keys are in the slot of the lock
local lock, fence, queue, heartbeats, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, inbox = ARGV[1], ARGV[3]
local has_slots = string.find(inbox, '}:$')

local together = redis.call('TYPE', lock).ok == 'zset'
--@include value.lua
--@include notify.lua
--@include queue.lua

-- The holder renews before its lease would have ended; after that no request reads the key `forced`.
local function notify_forced(client, left)
  redis.call('SET', KEYS[6], ARGV[2], 'PX', math.max(left, 1000))
  notify(client, table.concat({ 'forced', token, lock }, ':') .. '\n' .. ARGV[2])
end

read_holders()
if together then
  if held == 'foreign' then return { token, 'not_held' } end
  local members = members_of(token, '')
  if #members > 0 then
    notify_forced(string.sub(members[1], 34, 49), redis.call('ZSCORE', lock, members[1]) - lease_clock())
  else
    -- Released, and still closed.
    for _, member in ipairs(redis.call('ZRANGE', lock, 0, -1)) do
      if string.sub(member, 1, 33) == '!' .. token then members[#members + 1] = member end
    end
  end
  if #members == 0 then return { token, 'not_held' } end
  remove_members(members)
  pcall(dequeue_token, token)
  pcall(serve)
  return { token, 'freed' }
end
local shared = holder and string.sub(holder, 1, 1) == '=' and redis.call('ZSCORE', holders, token)
local kept_closed = holder == '!' .. token
if holder ~= token and not shared and not kept_closed then return { token, 'not_held' } end

if not kept_closed then notify_forced(client, redis.call('PTTL', lock)) end
if shared then
  redis.call('ZREM', holders, token)
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', clock())
  local others = redis.call('ZCARD', holders)
  if others > 0 then
    extend_to_longest()
    return { token, 'still', others }
  end
end
redis.call('DEL', lock)
held = false
pcall(dequeue_token, token)
pcall(serve)
return { token, 'freed' }
