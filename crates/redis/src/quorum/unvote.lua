-- unvote.lua: take this node's vote back, if it is the claim's, and notify a waiter to ask.
--
-- KEYS[1] lock        string, flag + version + claim + round; or the votes of readers, see vote.lua; absent means free
-- KEYS[2] queue       sorted set, the tokens of the waiters, by ticket
-- KEYS[3] heartbeats  hash, the heartbeats of the waiters
-- KEYS[4] forced      string, who took the lock by force; the holder's next renewal finds it
-- ARGV[1] token       of the claim, echoed first in every reply
-- ARGV[2] body        the lock's value in the round to take back, without its flag and up to its number; of a reader,
--                     its entry and its round; '' to end the claim and remove its entry from the queue
-- ARGV[3] closed      for how many milliseconds the lock stays closed; 0 frees it
-- ARGV[4] by          who takes the lock by force, and why; '' for the holder itself
-- ARGV[5] inbox       the prefix of inbox names
--
-- Returns 'token freed' or 'token not_held' (expired, another claim's, or of another round)
-- Retry   safe: the second run finds the lock gone, closed or another claim's and replies not_held
-- Slots   two: the forced key does not belong to the lock
local lock, queue, heartbeats = KEYS[1], KEYS[2], KEYS[3]
local token, body, closed, by, inbox = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local has_slots, together = false, redis.call('TYPE', lock).ok == 'zset'
--@include value.lua
-- Taking a round back notifies no waiter. Waiters stay queued, and the claims that denied us retry by
-- themselves, each after a pause of its own. Notified together, they would split the votes again.
if body ~= '' then
  if together then return token .. (redis.call('ZREM', lock, body) == 1 and ' freed' or ' not_held') end
  if holder ~= token or string.sub(value, 2, 1 + #body) ~= body then return token .. ' not_held' end
  redis.call('DEL', lock)
  return token .. ' freed'
end

-- Our vote among those of readers; for force also one that is kept closed. A set of another kind is never changed.
local closed_mark = by ~= '' and '!' .. token
local readers, member
for index, entry in ipairs(together and redis.call('ZRANGE', lock, '0', '-1') or {}) do
  if index == 1 then readers = string.find(entry, '^!?%x+ %x+ %d+ %d+ ~') end
  if string.sub(entry, 1, 32) == token or string.sub(entry, 1, 33) == closed_mark then member = entry end
end
if readers then redis.call('ZREMRANGEBYSCORE', lock, '-inf', string.format('%d', clock())) end
member = member and redis.call('ZSCORE', lock, member) and member
local kept_closed = closed_mark and (holder == closed_mark or member and string.sub(member, 1, 1) == '!')
local ours = holder == token or kept_closed or member

-- Frees the lock, or closes it: a `!` before the token keeps the claim from releasing or renewing it again.
-- Until it expires, only force opens it.
local function set_free()
  if member then
    if closed > 0 then extend_members({ '!' .. member }, closed) end
    redis.call('ZREM', lock, member)
  elseif closed > 0 then
    redis.call('SET', lock, '-t1:closed:!' .. token .. ':' .. string.sub(value, rest), 'PX', ARGV[3])
  else
    redis.call('DEL', lock)
  end
  return token .. ' freed'
end

local waited = redis.call('EXISTS', queue) == 1
if not waited and by == '' then
  return ours and set_free() or token .. ' not_held'
end
--@include notify.lua

-- Notifies the first waiters that listen, all of them if they are readers: several writers at a time would split the
-- votes. Beside readers a writer has no use for it.
local function next_asks()
  local notified = readers and redis.call('EXISTS', lock) == 1
  for _, waiter in ipairs(redis.call('ZRANGE', queue, 0, 31)) do
    local beat = redis.call('HGET', heartbeats, waiter) or ''
    local writer = string.match(beat, '^%d+ %a+ %d+ t1:([^:]*):')
    local client = writer or string.match(beat, '^%d+ %a+ %d+ %x+ (%x+) ') or ''
--@include liveness.lua
    local message = table.concat({ 'ask', waiter, lock }, ':')
    if not till or till < clock() then
      dequeue(waiter)
    elseif writer and notified then
      return
    elseif wait_mode == 'push' and listens(client) and notify(client, message) then
      if writer then return end
      notified = true
    end
  end
end

if by == '' then pcall(dequeue, token) end
if not ours then
  -- A writer that leaves the queue may have held readers back.
  if by == '' and not value then pcall(next_asks) end
  return token .. ' not_held'
end
if by ~= '' and not kept_closed then
  -- Kept until the lease would have ended: the holder's next renewal is before that, and nothing reads it
  -- later.
  local left = member and redis.call('ZSCORE', lock, member) - clock() or redis.call('PTTL', lock)
  redis.call('SET', KEYS[4], by, 'PX', string.format('%.0f', math.max(left, 1000)))
  notify(member and string.sub(member, 34, 49) or client, table.concat({ 'forced', token, lock }, ':') .. '\n' .. by)
end
local freed = set_free()
if waited then pcall(next_asks) end
return freed
