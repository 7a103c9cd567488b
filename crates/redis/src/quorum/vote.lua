-- vote.lua: give this node's vote to a claim, with a number for its fence; or return the current holder.
--
-- KEYS[1] lock        string, flag + version + claim + round; or the votes of readers, a sorted set as in value.lua,
--                     with the round at the end of each entry; absent means free
-- KEYS[2] fence       string, the last number assigned, in 1/256 ms since 2025
-- KEYS[3] queue       sorted set, the tokens of the waiters, by ticket
-- KEYS[4] heartbeats  hash, token -> end of its heartbeat, wait_mode, ttl and body
-- ARGV[1] token       of the claim, echoed first in every reply
-- ARGV[2] body        the lock's new value, without its flag and up to its number; of a reader, its entry and its
--                     round; different for each round
-- ARGV[3] ttl         in milliseconds
-- ARGV[4] want        the proposed number, the same for all nodes; '' for a vote without a number
-- ARGV[5] wait_mode   '' asks once; 'push' waits with an inbox, 'poll' without
-- ARGV[6] alive_ms    for how many milliseconds this heartbeat proves that we are alive
-- ARGV[7] inbox       the prefix of inbox names
--
-- Returns 'token granted number flag'                      the vote is ours, anew or again
--         {token, 'held', value, pttl}                     another claim has it; the value or entry of that claim
--         {token, 'type', key} {token, 'endless', value} {token, 'count', fence}   refused
-- Retry   safe: the second run finds the vote ours and gives it again, with a higher number
-- Slots   one: all keys belong to one lock, except the fence
local lock, fence, queue, heartbeats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, body, wait_mode, inbox = ARGV[1], ARGV[2], ARGV[5], ARGV[7]
local reads = string.sub(body, 1, 3) ~= 't1:'
local ours, left, queued, earlier = '-', 0, false, nil

-- In the common case the lock is free and the queue is empty: nothing of this is needed.
if redis.call('EXISTS', lock, queue) > 0 then
local has_slots, together = false, redis.call('TYPE', lock).ok == 'zset'
--@include value.lua
  if wrong_type then return { token, 'type', lock } end
--@include notify.lua
--@include queue.lua
  read_holders()
  if held == 'foreign' then return { token, 'type', lock } end

  -- The claim that keeps us out, if one does, and for how long. A reader also lets pass a writer that was queued here
  -- before it, unless that writer's process is gone.
  local function in_the_way()
    if held == 'alone' then return holder ~= token and value, redis.call('PTTL', lock) end
    local first = held and redis.call('ZRANGE', lock, '0', '0')[1]
    if not reads or held == '#' then return first, redis.call('PTTL', lock) end
    for _, waiter in ipairs(redis.call('ZRANGE', queue, '0', '31')) do
      if waiter == token then return end
      local beat = redis.call('HGET', heartbeats, waiter) or ''
      local writer, client = string.match(beat, '^%d+ %a+ %d+ (t1:([^:]*):.*)$')
--@include liveness.lua
      if not till or till < clock() then
        dequeue(waiter)
      elseif writer and (wait_mode ~= 'push' or listens(client)) then
        return first or '*' .. writer, till - clock()
      end
    end
  end
  local other, rest = in_the_way()
  if other then
    if rest < 0 and not together then return { token, 'endless', other } end
    -- A value of another format is never changed, and its holder sends no notification.
    if wait_mode == '' or held == 'alone' and not holder then return { token, 'held', other, rest } end
    local beat = string.format('%.0f %s %s %s', clock() + ARGV[6], wait_mode, ARGV[3], body)
    local added = redis.call('ZADD', queue, 'NX', clock(), token)
    redis.call('HSET', heartbeats, token, beat)
    -- Both keys expire with the last heartbeat: a waiter may vanish without leaving the queue.
    for _, key in ipairs({ queue, heartbeats }) do
      if redis.call('PTTL', key) < tonumber(ARGV[6]) then redis.call('PEXPIRE', key, ARGV[6]) end
    end
    if together and added == 1 and not reads then
      for _, member in ipairs(redis.call('ZRANGE', lock, '0', '255')) do
        local claim, client = string.match(member, '^(%x+) (%x+) ')
        if claim then notify(client, table.concat({ 'contended', claim, lock }, ':')) end
      end
    elseif flag == '-' and holder ~= '' then
      redis.call('SET', lock, '*' .. string.sub(value, 2), 'KEEPTTL')
      notify(client, table.concat({ 'contended', holder, lock }, ':'))
    end
    return { token, 'held', other, rest }
  end
  -- Ours already, by an earlier request.
  if held == 'alone' then
    ours, left = flag, rest
  elseif held then
    earlier = members_of(token, '')[1]
    if earlier then left = redis.call('ZSCORE', lock, earlier) - clock() end
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
local ttl = math.max(left, tonumber(ARGV[3]))
if reads then
  local time = redis.call('TIME')
  local ends = time[1] * 1000 + math.floor(time[2] / 1000) + ttl
  if earlier then redis.call('ZREM', lock, earlier) end
  redis.call('ZADD', lock, string.format('%.0f', ends), body)
  if redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, string.format('%.0f', ttl)) end
else
  redis.call('SET', lock, ours .. body .. drawn, 'PX', string.format('%.0f', ttl))
end
return token .. ' granted ' .. drawn .. ' ' .. ours
