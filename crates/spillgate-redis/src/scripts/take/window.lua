-- The step for one take on a fixed window. decide.lua handles a state with a penalty.
--
-- A step reads raw and at, and sets fits, value, s, ns and stale. It uses `break` to leave the take to decide.lua
-- (command/script.rs).
--
--     ARGV[2]  cost; max_used: the most units with which it fits, L - cost; W as a time; W in microseconds if
--              windows begin at multiples of W, 0 if they begin at the first hit
local cost, max_used, window_s, window_ns, length = struct.unpack('>I7I7I5I4I7', ARGV[2], at)
local start_s, start_ns, count, fresh = now_s, now_ns, 0, true
if raw ~= '' then
  if #raw ~= 16 then break end
  start_s, start_ns, count = struct.unpack('>I5I4I7', raw)
  -- The state counts until start + W. It does not count if start > now + W, since the clock was then set back.
  local age_s, age_ns = now_s - start_s, now_ns - start_ns
  if age_ns < 0 then age_s, age_ns = age_s - 1, age_ns + 1000000000 end
  fresh = age_s > window_s or (age_s == window_s and age_ns >= window_ns)
  if age_s < 0 and age_ns > 0 then age_s, age_ns = age_s + 1, age_ns - 1000000000 end
  stale = -age_s > window_s or (-age_s == window_s and -age_ns > window_ns)
end
if fresh or stale then
  start_s, start_ns, count = now_s, now_ns, 0
  if length > 0 then
    start_s, start_ns = window_start(now_s, now_ns, elapsed(now_s, now_ns, length))
    start_ns = start_ns * 1000
  end
end
-- allow <=> count <= L - cost
fits = count <= max_used
if not fits then break end
s, ns = start_s + window_s, start_ns + window_ns
if ns >= 1000000000 then s, ns = s + 1, ns - 1000000000 end
value = struct.pack('>I5I4I7', start_s, start_ns, count + cost)
