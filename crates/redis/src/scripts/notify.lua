-- notify.lua: included after value.lua by scripts that notify processes. Needs `inbox`, `queue` and `heartbeats`.
--@constants

-- Whether the process `client` is subscribed to its inbox. Subscribers are counted by name if that is
-- allowed: `PUBLISH` also counts clients that subscribe to everything and wait for nothing. In a cluster this node has
-- the subscribers of its slots.
local function listens(client)
  local counted = redis.pcall('PUBSUB', SHARDED and 'SHARDNUMSUB' or 'NUMSUB', inbox .. client)
  return counted.err or counted[2] > 0
end

-- Whether the message has reached a process.
local function notify(client, message)
  local receivers = redis.pcall(PUBLISH, inbox .. client, message)
  return type(receivers) == 'number' and receivers > 0
end

-- Removes an entry, which starts with its token, and its heartbeat. If the queue is empty now, removes all
-- heartbeats: handover_fast.lua leaves some behind. Does nothing in a script that runs with the lock alone.
local function dequeue(entry)
  if not queue or redis.call('ZREM', queue, entry) == 0 then return end
  if redis.call('EXISTS', queue) == 0 then return redis.call('DEL', heartbeats) end
  redis.call('HDEL', heartbeats, string.sub(entry, 1, 32))
end
