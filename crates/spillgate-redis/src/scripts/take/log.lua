-- The last part of the scripts `take_log` and `take_zset`: one take on a sliding window log with the limit L and the
-- window W. The log is a list or a sorted set. `form` is a table of functions that read and write one of these two forms
-- (lib/log_list.lua, lib/log_zset.lua).
--
--     KEYS     the key of the log
--     ARGV[1]  the time of the decision; '' means the current time of Redis
--     ARGV[2]  cost; max_used, which is L - cost; W in seconds and nanoseconds
--     RETURNS  the time of the decision; then a short form of the log before the take. It has only what the caller needs
--              to compute the decision (`log_digest` in lib/logs.lua)
--
-- If the log has a penalty, the script writes nothing and returns the time followed by '?'. The caller then calls
-- decide.lua, which supports penalties.
local cost, max_used, window_s, window_ns = struct.unpack('>I7I7I5I4', ARGV[2])
local reply = struct.pack('>I5I4', now_s, now_ns)
local s, ns, size = now_s, now_ns, form.size(KEYS[1])
if size > 0 then
  if form.until_when(KEYS[1]) then return reply .. '?' end
  local newest_s, newest_ns = form.time(KEYS[1], -1)
  local ahead_s, ahead_ns = newest_s - now_s, newest_ns - now_ns
  if ahead_ns < 0 then ahead_s, ahead_ns = ahead_s - 1, ahead_ns + 1000000000 end
  if ahead_s > window_s or (ahead_s == window_s and ahead_ns > window_ns) then
    redis.call('DEL', KEYS[1]) -- the clock was set back
    size = 0
  elseif ahead_s >= 0 then
    s, ns = newest_s, newest_ns -- time never goes back in a log: the request is decided at the time of the newest unit
  end
end
local expired = log_expired(form, KEYS[1], 0, size, window_s, window_ns, s, ns)
local count = size - expired
-- The take fits if count <= L - cost. Otherwise it will fit when the n oldest units have expired, where n is
-- count + cost - L. So the reply shows the time of the n-th oldest unit.
reply = reply .. log_digest(form, KEYS[1], expired, count, {count - max_used})
if count <= max_used then
  may_use(KEYS[1], {'PEXPIREAT'})
  if expired > 0 then form.trim(KEYS[1], expired) end
  form.push(KEYS[1], s, ns, cost)
  ns = ns + window_ns
  s = s + window_s + math.floor(ns / 1000000000)
  end_key(KEYS[1], s, ns % 1000000000)
end
return reply
