-- moving/more.lua: a short form while the slot moves to another node: there is nothing plain about that.
--
-- KEYS[1] lock     string, flag + version + claim; absent means free
-- ARGV[1] echo     what every answer of the short form starts with
--
-- Returns 'echo more' (the full form finds out)
-- Retry   safe: it does nothing
-- Slots   one
return ARGV[1] .. ' more'
