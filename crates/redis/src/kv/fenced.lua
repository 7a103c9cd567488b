-- fenced.lua: write a value, unless a newer fence has written it.
--
-- KEYS[1] value    any type; it is replaced
-- KEYS[2] mark     string, the highest fence that wrote the value; absent means none
-- ARGV[1] value    the new value
-- ARGV[2] ttl      in milliseconds, or 0 for a value that does not expire
-- ARGV[3] fence    decimal, without leading zeros
-- ARGV[4] longer   how many milliseconds the mark outlives the value
--
-- Returns '' if the value was written, else the newer fence that was seen
-- Retry   safe: the same fence may write again
-- Slots   one server only: the keys need not share a slot

local value, ttl, fence = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- Compared as text: fences have 63 bits, and Lua numbers are exact to 53.
local seen = redis.call('GET', KEYS[2]) or ''
if #seen > #fence or (#seen == #fence and seen > fence) then
  return seen
end

if ttl == 0 then
  redis.call('SET', KEYS[2], fence)
  redis.call('SET', KEYS[1], value)
  return ''
end

-- The mark's remaining lifetime is never shortened: an older holder may still be running.
local left, wanted = redis.call('PTTL', KEYS[2]), ttl + tonumber(ARGV[4])
if left == -1 or left > wanted then
  redis.call('SET', KEYS[2], fence, 'KEEPTTL')
else
  redis.call('SET', KEYS[2], fence, 'PX', string.format('%.0f', wanted))
end
redis.call('SET', KEYS[1], value, 'PX', ttl)
return ''
