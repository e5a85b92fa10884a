-- One take on a token bucket or a queue.
-- KEYS     the bucket: TAT, when all debt is paid, and the T that the debt is counted in
-- ARGV[2]  cost * T; room: the most debt beside which the take fits, min(B*T - cost*T, longest wait);
--          the most debt there is, 2*B*T; T in bytes as the bucket keeps it
-- RETURNS  the time of the decision, and the bucket as it was before
-- TIME     '' for the server's own
-- Writes nothing where the bucket has another T or a penalty: then it is a case for decide.lua.
local cost_s, cost_ns, room_s, room_ns, most_s, most_ns, interval = struct.unpack('>I5I4I5I4I5I4c9', ARGV[2])
local raw = redis.call('GET', KEYS[1]) or ''
local answer = struct.pack('>I5I4', now_s, now_ns) .. raw
local debt_s, debt_ns, changed = 0, 0, false
if raw ~= '' then
  if #raw ~= 18 then return answer end
  local tat_s, tat_ns, known = struct.unpack('>I5I4c9', raw)
  -- debt = max(TAT - now, 0)
  debt_s, debt_ns = tat_s - now_s, tat_ns - now_ns
  if debt_ns < 0 then debt_s, debt_ns = debt_s - 1, debt_ns + 1000000000 end
  if debt_s < 0 then
    debt_s, debt_ns = 0, 0
  elseif known ~= interval and debt_s + debt_ns > 0 then
    return answer
  elseif debt_s > most_s or (debt_s == most_s and debt_ns > most_ns) then
    debt_s, debt_ns, changed = most_s, most_ns, true -- the clock was set back
  end
end
-- allow <=> debt <= room; then TAT = now + debt + cost*T
if debt_s < room_s or (debt_s == room_s and debt_ns <= room_ns) then
  debt_s, debt_ns, changed = debt_s + cost_s, debt_ns + cost_ns, true
end
if changed then
  local s, ns = now_s + debt_s, now_ns + debt_ns
  if ns >= 2000000000 then s, ns = s + 2, ns - 2000000000 end
  if ns >= 1000000000 then s, ns = s + 1, ns - 1000000000 end
  redis.call('SET', KEYS[1], struct.pack('>I5I4', s, ns) .. interval, ending(s, ns))
end
return answer
