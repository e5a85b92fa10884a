-- The first part of the scripts `take_bucket`, `take_window` and `take_counter`: one or more takes. Each take is decided
-- independently of the others. command/script.rs puts a step (bucket.lua, window.lua or counter.lua) between this file
-- and each_set.lua. The step decides one take.
--
--     KEYS     for each take, the key of its state; a key can occur several times
--     ARGV[1]  the time of the decision; '' means the current time of Redis
--     ARGV[2]  for each take, the arguments of its step; the arguments of each take have the same length
--     RETURNS  for one take: the time of the decision, and then the bytes of the state as they were before the take.
--              For several takes: a list of such replies. If a take could not be executed, its element is an error
local now, length, replies = struct.pack('>I5I4', now_s, now_ns), #ARGV[2] / #KEYS, {}
for i = 1, #KEYS do
  local key, at = KEYS[i], (i - 1) * length + 1
  local raw = redis.pcall('GET', key) or ''
  local reply = raw
  if type(raw) == 'string' then
    reply = now .. raw
