-- Takes on as many states, each by itself: what stands between this and each_set.lua judges one of them.
-- KEYS     the states, of which one may come several times
-- ARGV[2]  for each take what its step reads; all of one length
-- RETURNS  the time of the decision, and the state as it was before; of several takes a list of these, and of why one
--          could not be done
-- TIME     '' for the server's own
local now, length, answers = struct.pack('>I5I4', now_s, now_ns), #ARGV[2] / #KEYS, {}
for i = 1, #KEYS do
  local key, at = KEYS[i], (i - 1) * length + 1
  local raw = redis.pcall('GET', key) or ''
  local answer = raw
  if type(raw) == 'string' then
    answer = now .. raw
