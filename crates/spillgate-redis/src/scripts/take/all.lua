-- The script `take_all`: several takes, each on a different state. Either all takes are charged, or none is charged.
-- The file clock.lua, which comes first in the script, has set the time of the decision (now_s, now_ns).
--
--     KEYS     the keys of the states, in the order of the takes
--     ARGV[1]  the time of the decision; '' means the current time of Redis
--     ARGV[2]  for each take: the number of its algorithm (1 bucket, 2 window, 3 counter), the number of bytes that
--              follow, and the arguments of its step. A step is the code that decides one take (bucket.lua, window.lua
--              or counter.lua)
--     RETURNS  the time of the decision; then, for each state, its length and its bytes as they were before the takes
local takes, at, allowed = {take_bucket, take_window, take_counter}, 1, true
local reply = struct.pack('>I5I4', now_s, now_ns)
local raws, after, stale = {}, {}, {}
for i, key in ipairs(KEYS) do
  raws[i] = redis.call('GET', key) or ''
  reply = reply .. struct.pack('>B', #raws[i]) .. raws[i]
end
for i = 1, #KEYS do
  local algorithm, length = string.byte(ARGV[2], at, at + 1)
  local fits, value, s, ns, is_stale = takes[algorithm](raws[i], at + 2)
  if fits == nil then return reply end -- a step cannot decide, so nothing is charged; the caller may call decide.lua
  allowed = allowed and fits
  after[i] = {value, s, ns}
  stale[i] = is_stale
  at = at + 2 + length
end
for i, key in ipairs(KEYS) do
  if allowed then
    local value, s, ns = unpack(after[i], 1, 3)
    redis.call('SET', key, value, ending(s, ns))
  elseif stale[i] then
    redis.call('DEL', key)
  end
end
return reply
