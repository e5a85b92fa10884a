-- The step for one take on a sliding window counter of one segment. The counter has a limit L and a window W. Its state
-- is the start of the newest window, the count of the newest window, and the count of the window before it.
--
-- A step is code that decides one take. command/script.rs puts it into a script. The step reads `raw`, the bytes of the
-- state ('' if the key does not exist), and `at`, the position of its arguments in ARGV[2]. It sets these variables:
--
--     fits      whether the take fits. It stays nil if the general script (decide.lua) has to decide
--     value     the bytes of the state after the take
--     s, ns     the time when that state ends, in seconds and nanoseconds
--     stale     true if the old state is from before the clock was set back
--
-- The step uses `break` to stop early. It leaves a state with a penalty, and a state with a count of 2^40 or more, to
-- decide.lua.
--
--     ARGV[2]  cost; max_used, which is L - cost; W in microseconds
local cost, max_used, length = struct.unpack('>I7I7I7', ARGV[2], at)
local at_s, at_ns = now_s, now_ns
local known_s, known_us, count, before = 0, 0, 0, 0
if raw ~= '' then
  if #raw ~= 18 then break end
  known_s, known_us, count, before = struct.unpack('>I5I3I5I5', raw)
  local ahead = (known_s - now_s) * 1000000 + known_us - math.floor(now_ns / 1000)
  if ahead > length then
    known_s, known_us, count, before, stale = 0, 0, 0, 0, true -- the clock was set back
  elseif ahead > 0 then
    -- The time of this request is before the start of the newest window. The request is decided as if it came at that
    -- start.
    at_s, at_ns = known_s, known_us * 1000
  end
end
local into = elapsed(at_s, at_ns, length)
local start_s, start_us = window_start(at_s, at_ns, into)
local age = (start_s - known_s) * 1000000 + start_us - known_us
if age == length then
  count, before = 0, count
elseif age > 0 then
  count, before = 0, 0
end
-- The take fits if before * (W - e) <= (L - count - cost) * W. e is the time since the newest window began, exact to the
-- nanosecond: `into` is its whole microseconds, and `below` is the nanoseconds that remain.
local below = at_ns % 1000
local fraction = math.floor(before / 1000) * below + math.floor(before % 1000 * below / 1000)
fits = count <= max_used and at_most(before, length - into, fraction, max_used - count, length)
if not fits then break end
local us = start_us + 2 * length
s, ns = start_s + math.floor(us / 1000000), us % 1000000 * 1000
value = struct.pack('>I5I3I5I5', start_s, start_us, count + cost, before)
