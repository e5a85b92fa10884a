-- One take on a sliding window log, in the form of `form`.
--
--     KEYS     the log
--     ARGV[2]  cost; max_used: the most units with which it fits, L - cost; W as a time
--     RETURNS  the time of the decision; the part of the log before that this take needs
--     TIME     '' for the server's own
--
-- It writes nothing and returns '?' if the log has a penalty: decide.lua handles that.
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
    s, ns = newest_s, newest_ns -- a late request counts as of the newest unit
  end
end
local expired = log_expired(form, KEYS[1], 0, size, window_s, window_ns, s, ns)
local count = size - expired
-- allow <=> count <= L - cost. Otherwise the take waits for the unit that is (count + cost - L)th oldest.
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
