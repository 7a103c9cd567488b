-- moving/acquire.lua: acquire.lua while the slot moves to another node: by the lock's key alone.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[2] who      the token, or `=` and the shared owner
-- ARGV[3] place    what would stand in the queue for it, see queue.lua
-- ARGV[4] ttl      in milliseconds
-- ARGV[5] fenced   '1', or '0' for a grant without a fence
--
-- Returns {token, 'next', flag}                            it is ours, anew or still: draw its number
--         {token, 'granted', '0', flag}                    the same for one without
--         {token, 'held', value, pttl}                     it is another's: there is no queue here
--         {token, 'type', key} {token, 'endless', value}   refused
--         TRYAGAIN                                         a shared owner needs the other keys
-- Retry   safe: the second run finds the lock ours and grants it again
-- Slots   one. The queue may be on the other node: whoever comes first is first
local lock, token, who, ttl = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[4])
if who ~= token then return redis.error_reply('TRYAGAIN a shared owner has several keys') end

local value = redis.pcall('GET', lock)
if type(value) == 'table' then
  return string.find(value.err, 'WRONGTYPE', 1, true) and { token, 'type', lock } or value
end

local function ours(flag)
  if ARGV[5] == '0' then return { token, 'granted', '0', flag } end
  return { token, 'next', flag }
end

if not value then
  local client, words = string.match(ARGV[3], '^%x+ (%x+) %d+ %d+ (:.*)$')
  local time = redis.call('TIME')
  local since = string.format('%d', time[1] * 1000 + (time[2] - time[2] % 1000) / 1000)
  redis.call('SET', lock, '-t1:' .. client .. ':' .. token .. ':' .. since .. words, 'PX', ARGV[4])
  return ours('-')
end
local left = redis.call('PTTL', lock)
local flag, holder = string.match(value, '^([-*])t1:[^:]*:([^:]*):')
if holder == who then
  if left < ttl then redis.call('PEXPIRE', lock, ttl) end
  return ours(flag)
end
return left < 0 and { token, 'endless', value } or { token, 'held', value, left }
