-- One take on one state: what stands between this and set_one.lua judges it.
-- KEYS     the state
-- ARGV[2]  what that reads
-- RETURNS  the time of the decision, and the state as it was before
-- TIME     '' for the server's own
local raw, at = redis.call('GET', KEYS[1]) or '', 1
