-- The step for one take on a token bucket or a queue. decide.lua handles a state with another T or b, with a penalty,
-- or from before a clock was set back.
--
-- A step reads raw and at, and sets fits, value, s, ns and stale. It uses `break` to leave the take to decide.lua
-- (command/script.rs).
--
--     ARGV[2]  cost * T; max_debt: the most debt with which the take fits, min(B*T - cost*T, longest wait);
--              2^b, which only the debt from before a clock was set back exceeds; T and b as the bucket stores them
local cost_s, cost_ns, max_debt_s, max_debt_ns, top_s, top_ns, quota = struct.unpack('>I5I4I5I4I5I4c10', ARGV[2], at)
local debt_s, debt_ns = 0, 0
if raw ~= '' then
  if #raw ~= 19 then break end
  local tat_s, tat_ns, known = struct.unpack('>I5I4c10', raw)
  -- debt = max(TAT - now, 0)
  debt_s, debt_ns = tat_s - now_s, tat_ns - now_ns
  if debt_ns < 0 then debt_s, debt_ns = debt_s - 1, debt_ns + 1000000000 end
  if debt_s < 0 or (debt_s == 0 and debt_ns == 0) then
    debt_s, debt_ns, stale = 0, 0, true
  elseif known ~= quota or debt_s > top_s or (debt_s == top_s and debt_ns > top_ns) then
    break
  end
end
-- allow <=> debt <= max_debt; then TAT = now + debt + cost*T
fits = debt_s < max_debt_s or (debt_s == max_debt_s and debt_ns <= max_debt_ns)
if not fits then break end
s, ns = now_s + debt_s + cost_s, now_ns + debt_ns + cost_ns
if ns >= 2000000000 then s, ns = s + 2, ns - 2000000000 end
if ns >= 1000000000 then s, ns = s + 1, ns - 1000000000 end
value = struct.pack('>I5I4', s, ns) .. quota
