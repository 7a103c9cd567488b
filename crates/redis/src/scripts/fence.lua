-- fence.lua: included by scripts that give out a fence. Needs `fence` and `token`.

-- The last fence + 1, or the clock if that is further on: so it rises through any loss of the count.
-- The number as text, or nil and why not. Fences end at 2^50.
local function next_fence()
--@include clock.lua
  local last = redis.pcall('SET', fence, text, 'GET')
  if not last then return text end
  if type(last) == 'table' then
    local wrong = string.find(last.err, 'WRONGTYPE', 1, true)
    return nil, wrong and { token, 'type', fence } or last
  end
  local number = #last < 17 and not string.find(last, '%D') and tonumber(last)
  if number and number < now then return text end
  local sane = number and number < 2 ^ 50 - 1
  local next = sane and string.format('%.0f', number + 1)
  redis.call('SET', fence, next or last)
  return next, { token, 'count', last }
end
