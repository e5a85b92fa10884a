-- Several takes on as many states, all or nothing.
--
--     KEYS     the states, in the order of the takes
--     ARGV[2]  for each take: the number of its algorithm, the number of bytes that follow, and what its step reads
--     RETURNS  the time of the decision, and each state before, with its length
--     TIME     '' for the server's own
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
  if fits == nil then return reply end
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
