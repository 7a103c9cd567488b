-- entry.lua: included by scripts that read an entry of the queue. Needs `entry`, and `time`, the reply of `TIME`.
--
-- An entry is `<token> <client> <ttl> <alive_ms> <mode><about>`, see value.rs:
--   token     the claim that waits, 32 characters
--   client    its process, 16 characters
--   ttl       the ttl that it asks for, in milliseconds
--   alive_ms  how long, in milliseconds after its ticket, it counts as alive
--   mode      nothing for an exclusive claim; `=` and the name of its shared owner; `~` for a reader; `#w/c` for w
--             permits out of c, with an `n` behind it for a numbered permit
--   about     the fields for people, each with a colon before it
--
-- Sets `millis`, the clock in milliseconds; `waiter`, the token; `their_client`; `their_ttl`, `alive_ms` and `mode`,
-- which are nil for an entry of another form; and `theirs`, the value of the lock (value.lua) while the waiter holds
-- it alone, without its flag and its fence.
local waiter, their_client = string.sub(entry, 1, 32), string.sub(entry, 34, 49)
local their_ttl, alive_ms, mode, about = string.match(entry, '^ (%d+) (%d+) ([^:]*)(:.*)$', 50)
local millis = time[1] * 1000 + (time[2] - time[2] % 1000) / 1000
local since = string.format(':%d', millis)
local theirs = about and 't1:' .. their_client .. ':' .. (mode == '' and waiter or mode) .. since .. about .. '::'
