-- moving/fence.lua: the number of a lock that moving/acquire.lua has taken: by the fence's key alone.
--
-- KEYS[1] fence    string, the last number given out, in 1/256 ms since 2025
-- ARGV[1] token    the claim's, echoed first in every answer
-- ARGV[9] flag     of the lock
--
-- Returns {token, 'granted', fence, flag}
--         {token, 'type', key} {token, 'count', fence}     refused; the lock is still to be given back
-- Retry   safe: the second run draws a higher number
-- Slots   one
local fence, token = KEYS[1], ARGV[1]
--@include fence.lua
local number, refusal = next_fence()
if not number then return refusal end
return { token, 'granted', number, ARGV[9] }
