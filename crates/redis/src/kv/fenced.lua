-- fenced.lua: write a value, unless a newer fence has written it.
--
-- KEYS[1] value    whatever is there is replaced
-- KEYS[2] mark     string, the highest fence that wrote the value; absent means none
-- ARGV[1] value    what to keep
-- ARGV[2] ttl      in milliseconds, or 0 to keep it for ever
-- ARGV[3] fence    decimal, without leading zeros
-- ARGV[4] longer   how many milliseconds the mark outlives the value
--
-- Returns '' written, or the fence that was seen and is newer
-- Retry   safe: the same fence may write again
-- Slots   one server only: the keys need not share a slot

local value, ttl, fence = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- As text: fences have 63 bits, and numbers here are exact to 53.
local seen = redis.call('GET', KEYS[2]) or ''
if #seen > #fence or (#seen == #fence and seen > fence) then
  return seen
end

if ttl == 0 then
  redis.call('SET', KEYS[2], fence)
  redis.call('SET', KEYS[1], value)
  return ''
end

-- The mark never lives shorter than it was to before: an older holder may still be around.
local left, wanted = redis.call('PTTL', KEYS[2]), ttl + tonumber(ARGV[4])
if left == -1 or left > wanted then
  redis.call('SET', KEYS[2], fence, 'KEEPTTL')
else
  redis.call('SET', KEYS[2], fence, 'PX', string.format('%.0f', wanted))
end
redis.call('SET', KEYS[1], value, 'PX', ttl)
return ''
