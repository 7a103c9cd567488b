-- release.lua: hand the lock to the next waiter, or free it, or close it for a while.
--
-- KEYS[1] lock        string, flag + version + claim; or a sorted set, see value.lua; absent means free
-- KEYS[2] fence       string, the last fence
-- KEYS[3] queue       sorted set, the entries of the waiters, by ticket
-- KEYS[4] heartbeats  hash, the heartbeats of waiters that have waited for half a second or more, or poll
-- KEYS[5] holders     sorted set, the tokens of a shared owner by the end of their lease
-- ARGV[1] token       of the claim, echoed first in every reply
-- ARGV[2] who         the token, or `=` and the shared owner, or the mode of a claim that shares the lock
-- ARGV[3] closed      for how many milliseconds no claim can acquire the lock; 0 frees it
-- ARGV[4] inbox       the prefix of the names of inboxes
-- ARGV[5] member      the claim's entry in the queue, with the slot of a numbered permit; '' if only the token is known
-- ARGV[6] result      only with the queue or the heartbeats alone: the result for the lock
--
-- While the slot moves to another node, the script runs three times with one key: with the lock; with the queue;
-- with the heartbeats. No waiter is notified: waiters find out with their heartbeats. See slot_migration.rs.
--
-- Returns {token, 'freed'}, {token, 'still', n} (n other claims of our owner hold it) or {token, 'not_held'}
--         (expired, or held by another claim)
--         {token, 'next', 'freed'}, {token, 'next', 'not_held'}   the same with one key: go on with the next key
--         TRYAGAIN                                                a shared owner needs all keys
-- Retry   safe: the second run finds the lock gone, closed or held by another claim and answers not_held
-- Slots   one: all keys are in the slot of the lock
local lock, fence, queue, heartbeats, holders = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local token, who, closed, inbox = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local has_slots = string.find(inbox, '}:$')
local entry = string.gsub(ARGV[5], '^(%x+ %x+ %d+ %d+ #%d+/%d+n)%d+', '%1')

-- With the queue or the heartbeats alone. If only the token is known, we cannot remove the entry here. It may be
-- granted later; the inbox then releases that grant.
if ARGV[6] then
  redis.pcall('ZREM', KEYS[1], entry)
  redis.pcall('HDEL', KEYS[1], token)
  return { token, 'next', ARGV[6] }
end
local function done(result)
  return queue and { token, result } or { token, 'next', result }
end

local together = redis.call('TYPE', lock).ok == 'zset'
--@include value.lua
--@include notify.lua
--@include queue.lua

-- A release also leaves the queue. The claim may be in it: a heartbeat that was in flight when the lock was
-- granted executes before this script. If another claim got the lock in between, the heartbeat entered the
-- queue again.
if entry ~= '' then pcall(dequeue, entry) else pcall(dequeue_token, token) end
read_holders()
if together then
  local members = held ~= 'foreign' and members_of(token, ARGV[5]) or {}
  if #members > 0 then
    local kept = {}
    for index, member in ipairs(members) do kept[index] = closed > 0 and '!' .. member or nil end
    if closed > 0 then extend_members(kept, closed) end
    used = used + #kept
    remove_members(members)
  end
  -- Also a claim that did not hold the lock may have held others back in the queue.
  if held ~= 'foreign' then pcall(serve) end
  -- The end of the lock that the waiters know is out of date.
  if closed > 0 and #members > 0 then pcall(wake, 0, 31) end
  return done(#members > 0 and 'freed' or 'not_held')
end
-- The release of an unwanted grant knows only the token, which may be one of a shared owner's claims.
if holder and string.sub(holder, 1, 1) == '=' and who == token then who = holder end
-- The claim may have held others back in the queue of a lock that is free by now. A key of another type is not ours.
if not value and not wrong_type then pcall(serve) end
-- A claim that shares the lock holds no value: see acquire.lua.
if holder ~= who or string.find(who, '^[~#]') then return done('not_held') end
if who ~= token then
  if not holders then return redis.error_reply('TRYAGAIN a shared owner has several keys') end
  -- Our own claim may have ended while others of our owner go on.
  redis.call('ZREMRANGEBYSCORE', holders, '-inf', clock())
  local ours = redis.call('ZREM', holders, token)
  local others = redis.call('ZCARD', holders)
  if others > 0 and ours == 1 then
    extend_to_longest()
    return { token, 'still', others }
  end
  if ours == 0 then return { token, 'not_held' } end
end

if closed > 0 then
  -- The `!` before the token prevents the claim from releasing or renewing it again. Only force.lua opens it.
  redis.call('SET', lock, '-t1:closed:!' .. token .. ':' .. string.sub(value, rest), 'PX', closed)
  pcall(wake, 0, 31)
  return done('freed')
end
redis.call('DEL', lock)
held = false
-- An error in the queue must not prevent the release.
pcall(serve)
return done('freed')
