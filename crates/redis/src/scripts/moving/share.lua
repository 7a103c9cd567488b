-- moving/share.lua: renew.lua while the slot moves to another node: our share, by the holders' key alone.
--
-- KEYS[1] holders  sorted set, the tokens of a shared owner by the end of their lease
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[3] ttl      in milliseconds, from now
--
-- Returns {token, 'next', ''} (the lock is to be renewed now) or {token, 'gone'}
-- Retry   safe: it is the same or later
-- Slots   one
local holders, token, ttl = KEYS[1], ARGV[1], tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local until_then = redis.call('ZSCORE', holders, token)
if not until_then or tonumber(until_then) <= now then return { token, 'gone' } end
redis.call('ZADD', holders, 'GT', now + ttl, token)
if redis.call('PTTL', holders) < ttl then redis.call('PEXPIRE', holders, ttl) end
return { token, 'next', '' }
