-- One take on one state, by `take`.
-- KEYS     the state
-- ARGV[2]  what `take` reads
-- RETURNS  the time of the decision, and the state as it was before
-- TIME     '' for the server's own
local raw = redis.call('GET', KEYS[1]) or ''
local fits, value, s, ns = take(raw, 1)
if fits then redis.call('SET', KEYS[1], value, ending(s, ns)) end
return struct.pack('>I5I4', now_s, now_ns) .. raw
