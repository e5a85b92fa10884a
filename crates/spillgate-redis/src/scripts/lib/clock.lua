-- Every script begins with this file. It sets the time of the decision.
--
-- In all scripts a time is two numbers: whole seconds since the epoch, and the nanoseconds since the last whole second.
-- Lua numbers are doubles, which are exact up to 2^53. The number of nanoseconds since the epoch is larger. In arguments,
-- states and replies a time is nine bytes: '>I5I4' for struct.pack.

-- The time of this decision. If a test passes a time in ARGV[1], the script uses it. Otherwise the script asks Redis
-- for the time. It asks only once, because the time of Redis can advance while the script runs.
local now_s, now_ns
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_s, now_ns = time[1] + 0, time[2] * 1000
else
  now_s, now_ns = struct.unpack('>I5I4', ARGV[1])
end
