-- Shared: every script begins with this.
-- Times are whole seconds and the nanoseconds below one: each stays far below 2^53, up to where doubles count exactly.
-- In bytes they are '>I5I4'.

-- The time of this decision: passed by a test, else the server's, read once (it may go on inside a script).
local now_s, now_ns
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now_s, now_ns = time[1] + 0, time[2] * 1000
else
  now_s, now_ns = struct.unpack('>I5I4', ARGV[1])
end
