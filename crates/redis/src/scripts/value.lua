-- value.lua: included by scripts that read the lock. Needs `lock`, and `together`: whether the lock is a sorted set
-- which has no value. The functions for sorted sets need `has_slots`: whether the server is a node of a cluster.
--
-- The value is `<flag>t1:<client>:<holder>:<since><about>:<round>:<fence>`, see value.rs:
--   flag    `*` while another claim waits, else `-`
--   client  the process of the holder, 16 characters; `closed` if the lock is closed for a while
--   holder  the token, 32 characters; or `=` and the shared owner; or `!` and the token of a closed lock
--   since   when it was granted, in Unix milliseconds
--   about   host, pid, user, program, label and reason, for people; each with a colon before it
--   round   used by a quorum only, else empty
--   fence   the fence of the grant; 0 or empty without one
-- So the token of a claim without a shared owner is at 22-53. enqueue_fast.lua relies on that.
--
-- Sets `value`, or false if the lock is free; and `flag`, `client`, `holder` and `rest` (the offset of the next
-- field), which are nil for a value of another form. A key of another type is not our lock: it sets `wrong_type`.
local value, wrong_type = not together and redis.pcall('GET', lock), false
if type(value) == 'table' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then return value end
  value, wrong_type = false, true
end
local flag, client, holder, rest = string.match(value or '', '^([-*])t1:([^:]*):([^:]*):()')

-- A lock that claims hold together is a sorted set at the lock's own key. Its members are the entries of the holders
-- (entry.lua), by the end of their lease in milliseconds. A claim of w permits has w members: its entry, and its token
-- with `#2` to `#w`. The entry of a numbered permit has its slot behind the `n`. A `!` before an entry: the holder has
-- released it, and it stays taken for the rest of its `min_hold`.

-- The clock in milliseconds. It stands still while the script runs: a command less for each further use.
local now_millis
local function clock()
  if not now_millis then
    local time = redis.call('TIME')
    now_millis = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now_millis
end

-- The time now, on the clock of the members' ends. In a cluster this is no node's clock: a slot may move to a node
-- whose clock is another, and a key takes the rest of its ttl with it. There the lock expires exactly with its last
-- member, so the last end, less the rest of the ttl, is now on every node. If a script stops between an end and the
-- expiry, this clock goes back: leases may end later, never earlier.
local function lease_clock()
  local last = has_slots and redis.call('ZREVRANGE', lock, 0, 0, 'WITHSCORES')[2]
  local left = last and redis.call('PTTL', lock) or -1
  return left >= 0 and last - left or clock()
end

-- Sets the end of these members, never to an earlier one, and the expiry of the lock, which ends with its last member.
local function extend_members(members, ttl)
  -- One end for all: they must not expire one by one.
  local ends, left = string.format('%d', lease_clock() + ttl), redis.call('PTTL', lock)
  if left ~= -2 and left < ttl then redis.call('PEXPIRE', lock, ttl) end
  for _, member in ipairs(members) do redis.call('ZADD', lock, 'GT', ends, member) end
  if left == -2 then redis.call('PEXPIRE', lock, ttl) end
end

-- What the first member says of how the lock is held: `~` for readers, `#` for permits, nil for a sorted set of another
-- program. Patterns start at the beginning of an entry: its last fields are free text.
local function kind_of(first)
  return string.match(first or '', '^!?%x+ %x+ %d+ %d+ ([~#])')
end

-- The members of a claim: by `member`, or by its token if there is none, as for an abandoned claim, whose slot nobody
-- knows. That reads all members, but not a sorted set of another program.
local function members_of(claim, member)
  local found = {}
  if member ~= '' and redis.call('ZSCORE', lock, member) then
    found[1] = member
    local weight = string.match(member, '^%x+ %x+ %d+ %d+ #(%d+)/')
    for more = 2, tonumber(weight or 1) do found[more] = claim .. '#' .. more end
    return found
  end
  if not kind_of(redis.call('ZRANGE', lock, '0', '0')[1]) then return found end
  for _, member in ipairs(redis.call('ZRANGE', lock, '0', '-1')) do
    if string.sub(member, 1, 32) == claim then found[#found + 1] = member end
  end
  return found
end
