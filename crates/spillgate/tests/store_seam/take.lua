-- Decides takes on several token buckets of one slot, all or nothing.
-- KEYS    one bucket each: when its debt is paid, as "<microseconds>:<nanoseconds below one>"
-- ARGV    now as two integers in that form; then for each key the cost in time (cost * T) and
--         the depth (B * T), each as two integers
-- RETURNS 1 if all fit and were charged, else 0; then each bucket as it was before ("" = none)
-- TIME    passed in; every number stays below 2^53, where doubles count exactly
local now_us, now_ns = tonumber(ARGV[1]), tonumber(ARGV[2])
local before, after, fits = {}, {}, 1
for i, key in ipairs(KEYS) do
  local cost_us, cost_ns = tonumber(ARGV[4 * i - 1]), tonumber(ARGV[4 * i])
  local depth_us, depth_ns = tonumber(ARGV[4 * i + 1]), tonumber(ARGV[4 * i + 2])
  before[i] = redis.call('GET', key) or ''
  local debt_us, debt_ns = 0, 0
  local tat_us, tat_ns = string.match(before[i], '^(%d+):(%d+)$')
  if tat_us then
    debt_us, debt_ns = tonumber(tat_us) - now_us, tonumber(tat_ns) - now_ns
    if debt_ns < 0 then debt_us, debt_ns = debt_us - 1, debt_ns + 1000 end
    if debt_us < 0 then debt_us, debt_ns = 0, 0 end
  end
  local owed_us, owed_ns = debt_us + cost_us, debt_ns + cost_ns
  if owed_ns >= 1000 then owed_us, owed_ns = owed_us + 1, owed_ns - 1000 end
  if owed_us > depth_us or (owed_us == depth_us and owed_ns > depth_ns) then fits = 0 end
  local new_us, new_ns = now_us + owed_us, now_ns + owed_ns
  if new_ns >= 1000 then new_us, new_ns = new_us + 1, new_ns - 1000 end
  after[i] = string.format('%.0f:%.0f', new_us, new_ns)
end
if fits == 1 then
  for i, key in ipairs(KEYS) do redis.call('SET', key, after[i], 'PX', 3600000) end
end
return {fits, unpack(before)}
