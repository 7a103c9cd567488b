-- renew.lua: extend the lock, never shorten it, if it is still ours.
--
-- KEYS[1] lock     string, flag + version + claim; or a sorted set, see value.lua; absent means free
-- KEYS[2] forced   string, who released our claim by force; absent otherwise
-- KEYS[3] holders  sorted set, the tokens of a shared owner by the end of their lease; for a claim that shares the
--                  lock, its queue
-- ARGV[1] token    of the claim, echoed first in every reply
-- ARGV[2] who      the token, or `=` and the shared owner, or the mode of a claim that shares the lock and its member
-- ARGV[3] ttl      in milliseconds, from now
-- ARGV[4] label    a colon and the new label of the claim, escaped; '' if it was not changed
-- ARGV[5] step     only for a shared owner with one key: 'holders', then 'lock'
--
-- While the slot moves to another node, the script runs with the lock alone. For a shared owner it then runs with
-- `holders` alone, and with the lock again. A forced release is reported as gone. See slot_migration.rs.
--
-- Returns {token, 'renewed', flag}, {token, 'gone'} or {token, 'forced', by}
--         flag: `*` or `-` as in the value; `?` if the queue is needed to know it, and cannot be seen
--         {token, 'next', step}   with one key: run this step with the next key
-- Retry   safe: the second run leaves the same end or a later one
-- Slots   one: all keys are in the slot of the lock
local lock, forced, holders, step = KEYS[1], KEYS[2], KEYS[3], ARGV[5]
local token, who, ttl = ARGV[1], ARGV[2], tonumber(ARGV[3])
-- The name of `forced` ends with a tag and the token.
local has_slots = not forced or string.find(forced, '}:%x+$')

-- Renews our claim of a shared owner. It may have ended while others of our owner go on.
local function renew_share(holders)
  local time = redis.call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local until_then = redis.call('ZSCORE', holders, token)
  if not until_then or tonumber(until_then) <= now then return false end
  redis.call('ZADD', holders, 'GT', now + ttl, token)
  if redis.call('PTTL', holders) < ttl then redis.call('PEXPIRE', holders, ttl) end
  return true
end
if step == 'holders' then return renew_share(KEYS[1]) and { token, 'next', 'lock' } or { token, 'gone' } end

local together = redis.call('TYPE', lock).ok == 'zset'
local member = string.match(who, '^[~#]%S* (.*)$')
--@include value.lua
local ours = holder == who
if together then
  local members = member and members_of(token, member) or {}
  ours = #members > 0 and tonumber(redis.call('ZSCORE', lock, members[1])) > lease_clock()
  if ours then extend_members(members, ttl) end
  flag = not holders and '?' or redis.call('EXISTS', holders) == 1 and '*' or '-'
elseif ours and who ~= token and not step then
  if not holders then return { token, 'next', 'holders' } end
  ours = renew_share(holders)
end
if not ours then
  local by = forced and redis.call('GET', forced)
  return by and { token, 'forced', by } or { token, 'gone' }
end

-- The label is the sixth field after the holder: see value.lua.
if ARGV[4] ~= '' and value then
  local before, after = string.match(value, '^([^:]*:[^:]*:[^:]*:[^:]*:[^:]*):[^:]*(:.*)$', rest)
  local new = before and string.sub(value, 1, rest - 1) .. before .. ARGV[4] .. after
  if new and new ~= value then redis.call('SET', lock, new, 'KEEPTTL') end
end

-- The holder relies on the ttl that it was granted, which may be longer than the one it asks for now.
if not together and redis.call('PTTL', lock) < ttl then redis.call('PEXPIRE', lock, ttl) end
return { token, 'renewed', flag }
