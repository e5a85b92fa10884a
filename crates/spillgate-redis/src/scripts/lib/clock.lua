-- Every script begins with this. A time is whole seconds and the nanoseconds below one. Each number stays far below
-- 2^53, up to which doubles are exact. Its bytes are '>I5I4'.

-- The time of this decision. A test passes it. Otherwise it is the server's time, read once, because that time may
-- advance inside a script.
local now_s, now_ns
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_s, now_ns = time[1] + 0, time[2] * 1000
else
  now_s, now_ns = struct.unpack('>I5I4', ARGV[1])
end
