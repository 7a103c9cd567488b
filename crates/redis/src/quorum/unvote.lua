-- unvote.lua: take this node's vote back, if it is the claim's, and notify a waiter to ask.
--
-- KEYS[1] lock        string, flag + version + claim + round; absent means free
-- KEYS[2] queue       sorted set, the tokens of the waiters, by ticket
-- KEYS[3] heartbeats  hash, the heartbeats of the waiters
-- KEYS[4] forced      string, who took the lock by force; the holder's next renewal finds it
-- ARGV[1] token       of the claim, echoed first in every reply
-- ARGV[2] body        the lock's value in the round to take back, without its flag and up to its number;
--                     '' to end the claim and remove its entry from the queue
-- ARGV[3] closed      for how many milliseconds the lock stays closed; 0 frees it
-- ARGV[4] by          who takes the lock by force, and why; '' for the holder itself
-- ARGV[5] inbox       the prefix of inbox names
--
-- Returns 'token freed' or 'token not_held' (expired, another claim's, or of another round)
-- Retry   safe: the second run finds the lock gone, closed or another claim's and replies not_held
-- Slots   two: the forced key does not belong to the lock
local lock, queue, heartbeats = KEYS[1], KEYS[2], KEYS[3]
local token, body, closed, by, inbox = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local together = false
--@include value.lua
-- Taking a round back notifies no waiter. Waiters stay queued, and the claims that denied us retry by
-- themselves, each after a pause of its own. Notified together, they would split the votes again.
if body ~= '' then
  if holder ~= token or string.sub(value, 2, 1 + #body) ~= body then return token .. ' not_held' end
  redis.call('DEL', lock)
  return token .. ' freed'
end

-- Frees the lock, or closes it: a `!` before the token keeps the claim from releasing or renewing it again.
-- Until it expires, only force opens it.
local function set_free()
  if closed > 0 then
    redis.call('SET', lock, '-t1:closed:!' .. token .. ':' .. string.sub(value, rest), 'PX', ARGV[3])
  else
    redis.call('DEL', lock)
  end
  return token .. ' freed'
end

local waited = redis.call('EXISTS', queue) == 1
if not waited and by == '' then
  return holder == token and set_free() or token .. ' not_held'
end
--@include notify.lua
if waited and by == '' then pcall(dequeue, token) end
local kept_closed = by ~= '' and holder == '!' .. token
if holder ~= token and not kept_closed then return token .. ' not_held' end
if by ~= '' and not kept_closed then
  -- Kept until the lease would have ended: the holder's next renewal is before that, and nothing reads it
  -- later.
  local left = math.max(redis.call('PTTL', lock), 1000)
  redis.call('SET', KEYS[4], by, 'PX', string.format('%.0f', left))
  notify(client, table.concat({ 'forced', token, lock }, ':') .. '\n' .. by)
end
local freed = set_free()

-- Notify the first waiter that listens, and no other: several waiters at a time would split the votes.
local function next_asks()
  local now = clock()
  for _, waiter in ipairs(redis.call('ZRANGE', queue, 0, 31)) do
    local beat = redis.call('HGET', heartbeats, waiter) or ''
    local client = string.match(beat, 't1:([^:]*):')
--@include liveness.lua
    local message = table.concat({ 'ask', waiter, lock }, ':')
    if not till or till < now then
      dequeue(waiter)
    elseif wait_mode == 'push' and listens(client) and notify(client, message) then
      return
    end
  end
end
if waited then pcall(next_asks) end
return freed
