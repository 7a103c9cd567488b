-- vote.lua: give this node's vote to a claim, with a number for its fence; or return the current holder.
--
-- KEYS[1] lock        string, flag + version + claim + round; absent means free
-- KEYS[2] fence       string, the last number assigned, in 1/256 ms since 2025
-- KEYS[3] queue       sorted set, the tokens of the waiters, by ticket
-- KEYS[4] heartbeats  hash, token -> end of its heartbeat, wait_mode, ttl and body
-- ARGV[1] token       of the claim, echoed first in every reply
-- ARGV[2] body        the lock's new value, without its flag and up to its number; different for each round
-- ARGV[3] ttl         in milliseconds
-- ARGV[4] want        the proposed number, the same for all nodes; '' for a vote without a number
-- ARGV[5] wait_mode   '' asks once; 'push' waits with an inbox, 'poll' without
-- ARGV[6] alive_ms    for how many milliseconds this heartbeat proves that we are alive
-- ARGV[7] inbox       the prefix of inbox names
--
-- Returns 'token granted number flag'                      the vote is ours, anew or again
--         {token, 'held', value, pttl}                     another claim has it
--         {token, 'type', key} {token, 'endless', value} {token, 'count', fence}   refused
-- Retry   safe: the second run finds the vote ours and gives it again, with a higher number
-- Slots   one: all keys belong to one lock, except the fence
local lock, fence, queue, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, body, wait_mode, inbox = ARGV[1], ARGV[2], ARGV[5], ARGV[7]
local ours, left, queued = '-', 0, false

-- In the common case the lock is free and the queue is empty: nothing of this is needed.
if redis.call('EXISTS', lock, queue) > 0 then
local together = false
--@include value.lua
  if wrong_type then return { token, 'type', lock } end
  if value then ours, left = flag, redis.call('PTTL', lock) end
  if value and holder ~= token then
    if left < 0 then return { token, 'endless', value } end
    -- A value of another format is never changed, and its holder sends no notification.
    if wait_mode == '' or not holder then return { token, 'held', value, left } end
--@include notify.lua
    local now = clock()
    local beat = string.format('%.0f %s %s %s', now + ARGV[6], wait_mode, ARGV[3], body)
    redis.call('ZADD', queue, 'NX', now, token)
    redis.call('HSET', heartbeats, token, beat)
    -- Both keys expire with the last heartbeat: a waiter may vanish without leaving the queue.
    for _, key in ipairs({ queue, heartbeats }) do
      if redis.call('PTTL', key) < tonumber(ARGV[6]) then redis.call('PEXPIRE', key, ARGV[6]) end
    end
    if flag == '-' and holder ~= '' then
      redis.call('SET', lock, '*' .. string.sub(value, 2), 'KEEPTTL')
      notify(client, table.concat({ 'contended', holder, lock }, ':'))
    end
    return { token, 'held', value, left }
  end
  queued = redis.call('EXISTS', queue) == 1
end

-- The number first: if there is none, no vote is left behind.
local drawn = '0'
if ARGV[4] ~= '' then
--@include clock.lua
  -- Prefer the proposed number: if all nodes take it, the claim need not write its fence back. It may be at
  -- most 50 ms ahead of the clock, because the clock replaces a count that was lost.
  local want = tonumber(ARGV[4])
  if want > now and want < now + 12800 then now, text = want, ARGV[4] end
--@include fence.lua
  if not number then return refusal end
  drawn = number
end

-- Leave the queue, and note whether others are still in it.
if queued then
  redis.call('ZREM', queue, token)
  redis.call('HDEL', heartbeats, token)
  if redis.call('EXISTS', queue) == 1 then ours = '*' end
end
-- Never shorten an earlier vote of this claim: its holder may rely on the time that is left.
local ttl = left > tonumber(ARGV[3]) and string.format('%.0f', left) or ARGV[3]
redis.call('SET', lock, ours .. body .. drawn, 'PX', ttl)
return token .. ' granted ' .. drawn .. ' ' .. ours
