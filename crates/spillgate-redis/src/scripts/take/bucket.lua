-- The step for one take on a token bucket or a queue. A bucket with the capacity B stores its debt (the units that are
-- taken and not yet refilled) as time: each unit adds T, the interval in which the debt of one unit is paid. So the
-- debt is a number of nanoseconds. The bucket stores T and a number b: a debt above 2^b ns can only come from a clock
-- that was set back. TAT is the time when all debt is paid.
--
-- A step is code that decides one take. command/script.rs puts it into a script. The step reads `raw`, the bytes of the
-- state ('' if the key does not exist), and `at`, the position of its arguments in ARGV[2]. It sets these variables:
--
--     fits      whether the take fits. It stays nil if the general script (decide.lua) has to decide
--     value     the bytes of the state after the take
--     s, ns     the time when that state ends, in seconds and nanoseconds
--     stale     true if all debt in the old state has been paid
--
-- The step uses `break` to stop early. It leaves these states to decide.lua: a state with another T or b, a state with
-- a penalty, and a debt above 2^b, which means that the clock was set back.
--
--     ARGV[2]  cost * T; max_debt = B*T - cost*T, but in a queue at most the longest wait that the take accepts; 2^b;
--              T and b as the bucket stores them
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
-- The take fits if debt <= max_debt. If it fits, the new TAT is now + debt + cost*T.
fits = debt_s < max_debt_s or (debt_s == max_debt_s and debt_ns <= max_debt_ns)
if not fits then break end
s, ns = now_s + debt_s + cost_s, now_ns + debt_ns + cost_ns
if ns >= 2000000000 then s, ns = s + 2, ns - 2000000000 end
if ns >= 1000000000 then s, ns = s + 1, ns - 1000000000 end
value = struct.pack('>I5I4', s, ns) .. quota
