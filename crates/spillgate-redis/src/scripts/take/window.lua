-- The step for one take on a fixed window with the limit L and the length W.
--
-- A step is code that decides one take. command/script.rs puts it into a script. The step reads `raw`, the bytes of the
-- state ('' if the key does not exist), and `at`, the position of its arguments in ARGV[2]. It sets these variables:
--
--     fits      whether the take fits. It stays nil if the general script (decide.lua) has to decide
--     value     the bytes of the state after the take
--     s, ns     the time when that state ends, in seconds and nanoseconds
--     stale     true if the old state is from before the clock was set back
--
-- The step uses `break` to stop early. It leaves a state with a penalty to decide.lua.
--
--     ARGV[2]  cost; max_used, which is L - cost; W in seconds and nanoseconds; `length`. If windows begin at multiples
--              of W since the epoch, `length` is W in microseconds. If a window begins at its first hit, `length` is 0
local cost, max_used, window_s, window_ns, length = struct.unpack('>I7I7I5I4I7', ARGV[2], at)
local start_s, start_ns, count, fresh = now_s, now_ns, 0, true
if raw ~= '' then
  if #raw ~= 16 then break end
  start_s, start_ns, count = struct.unpack('>I5I4I7', raw)
  -- The window in the state ends at start + W. If start > now + W, the clock was set back, so the state is ignored.
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
-- The take fits if count <= L - cost.
fits = count <= max_used
if not fits then break end
s, ns = start_s + window_s, start_ns + window_ns
if ns >= 1000000000 then s, ns = s + 1, ns - 1000000000 end
value = struct.pack('>I5I4I7', start_s, start_ns, count + cost)
