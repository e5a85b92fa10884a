-- Takes on as many states, each by itself. The step between this file and each_set.lua decides about one of them.
--
--     KEYS     the states; a state may be there several times
--     ARGV[2]  for each take what its step reads, all of one length
--     RETURNS  the time of the decision and the state before. For several takes, a list of these; an element is an
--              error if its take could not be executed
--     TIME     '' for the server's own
local now, length, replies = struct.pack('>I5I4', now_s, now_ns), #ARGV[2] / #KEYS, {}
for i = 1, #KEYS do
  local key, at = KEYS[i], (i - 1) * length + 1
  local raw = redis.pcall('GET', key) or ''
  local reply = raw
  if type(raw) == 'string' then
    reply = now .. raw
