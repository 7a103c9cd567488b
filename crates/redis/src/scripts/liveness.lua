-- liveness.lua: included by scripts that choose a waiter. Needs `beat`, its heartbeat or false. A waiter that has none
-- is alive by its `ticket` for `alive_ms`. Entries written by the quorum engine have no `alive_ms`: without a heartbeat
-- they count as dead.
--
-- Sets `till`, until when the waiter counts as alive, in milliseconds; and `wait_mode`, how it is notified. `till` is
-- nil if it does not count as alive.
local till, wait_mode
if beat then
  till, wait_mode = string.match(beat, '^(%d+) (%a+)')
  till = tonumber(till)
elseif alive_ms then
  till, wait_mode = ticket / 256 + 1735689600000 + alive_ms, 'push'
end
