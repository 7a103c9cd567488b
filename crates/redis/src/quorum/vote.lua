-- vote.lua: give this node's vote to a claim, with a number for its fence; or say who has it.
--
-- KEYS[1] lock     string, flag + version + claim + round; absent means free
-- KEYS[2] fence    string, the last number given out, in 1/256 ms since 2025
-- KEYS[3] queue    sorted set, the tokens that wait, by ticket
-- KEYS[4] beats    hash, token -> until when its heartbeat is good, how it is told, its ttl and body
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] body     what the lock is to hold, without its flag: another for each round
-- ARGV[3] ttl      in milliseconds
-- ARGV[4] want     the number that would suit, the same for all nodes; '' for a vote without a number
-- ARGV[5] how      '' asks once; 'push' waits with an inbox, 'poll' without
-- ARGV[6] good     for how many milliseconds this heartbeat is good
-- ARGV[7] inbox    what the names of inboxes start with
--
-- Returns 'token granted number flag'                      the vote is ours, anew or again
--         {token, 'held', value, pttl}                     it is another's
--         {token, 'type', key} {token, 'endless', value} {token, 'count', fence}   refused
-- Retry   safe: the second run finds the vote ours and gives it again, with a higher number
-- Slots   one: all keys are of one lock, but for the fence
local lock, fence, queue, beats = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, body = ARGV[1], ARGV[2]

-- What suits all nodes spares the claim to write it back. No more than 50 ms ahead of the clock, which
-- has to make up for a count that is lost.
local function number_for(want, now, text)
  if want > now and want < now + 12800 then return want, string.format('%d', want) end
  return now, text
end

-- Mostly nobody has it and nobody waits for it: then this is all.
if ARGV[4] ~= '' and redis.call('EXISTS', lock, queue) == 0 then
--@include clock.lua
  now, text = number_for(tonumber(ARGV[4]), now, text)
  local last = redis.pcall('SET', fence, text, 'GET')
  local count = type(last) == 'string' and #last < 17 and not string.find(last, '%D') and tonumber(last)
  if not last or count and count < now then
    redis.call('SET', lock, '-' .. body, 'PX', ARGV[3])
    return token .. ' granted ' .. text .. ' -'
  end
  -- The clock is behind the count, or the count is none.
  if type(last) == 'string' then redis.call('SET', fence, last) end
end

local ttl, how, inbox = tonumber(ARGV[3]), ARGV[5], ARGV[7]
local value = redis.pcall('GET', lock)
if type(value) == 'table' and value.err then
  return string.find(value.err, 'WRONGTYPE', 1, true) and { token, 'type', lock } or value
end
local flag, client, holder
if value then flag, client, holder = string.match(value, '^([-*])t1:([^:]*):([^:]*):') end
local left = value and redis.call('PTTL', lock) or 0

if value and holder ~= token then
  if left < 0 then return { token, 'endless', value } end
  -- A value of another form is never touched, and its holder will not tell us.
  if how == '' or not holder then return { token, 'held', value, left } end
--@include queue.lua
  local now = clock()
  local beat = string.format('%.0f %s %.0f %s', now + ARGV[6], how, ttl, body)
  redis.call('ZADD', queue, 'NX', now, token)
  redis.call('HSET', beats, token, beat)
  -- Gone with the last heartbeat: who is not heard of here any more may not have told us so.
  for _, key in ipairs({ queue, beats }) do
    if redis.call('PTTL', key) < tonumber(ARGV[6]) then redis.call('PEXPIRE', key, ARGV[6]) end
  end
  if flag == '-' and holder ~= '' then
    redis.call('SET', lock, '*' .. string.sub(value, 2), 'KEEPTTL')
    tell(client, table.concat({ 'contended', holder, lock }, ':'))
  end
  return { token, 'held', value, left }
end

-- The number first: where there is none to be had, nothing is left behind.
local number = '0'
if ARGV[4] ~= '' then
--@include clock.lua
  now, text = number_for(tonumber(ARGV[4]), now, text)
  number = text
  local last = redis.pcall('SET', fence, text, 'GET')
  if type(last) == 'table' then
    local wrong = string.find(last.err, 'WRONGTYPE', 1, true)
    return wrong and { token, 'type', fence } or last
  end
  local counted = last and #last < 17 and not string.find(last, '%D') and tonumber(last)
  if last and not (counted and counted < now) then
    local sane = counted and counted < 2 ^ 50 - 1
    number = sane and string.format('%.0f', counted + 1)
    redis.call('SET', fence, number or last)
    if not number then return { token, 'count', last } end
  end
end

-- Who waits for it no more; whether others do.
if redis.call('EXISTS', queue) == 1 then
  redis.call('ZREM', queue, token)
  redis.call('HDEL', beats, token)
  flag = redis.call('EXISTS', queue) == 1 and '*' or flag
end
-- Whoever relies on what is left of an earlier vote keeps it.
redis.call('SET', lock, (flag or '-') .. body, 'PX', string.format('%.0f', math.max(left, ttl)))
return token .. ' granted ' .. number .. ' ' .. (flag or '-')
