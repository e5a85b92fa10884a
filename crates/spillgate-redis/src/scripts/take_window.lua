-- One take on a fixed window.
-- KEYS     the window: its start, and the units counted in it
-- ARGV[2]  cost; room: the most units beside which it fits, L - cost; W as a time; W in microseconds
--          where windows are anchored at the epoch, 0 where at the first hit
-- RETURNS  the time of the decision, and the window as it was before
-- TIME     '' for the server's own
-- Writes nothing where the window has a penalty: then it is a case for decide.lua.
local cost, room, window_s, window_ns, length = struct.unpack('>I7I7I5I4I7', ARGV[2])
local raw = redis.call('GET', KEYS[1]) or ''
local answer = struct.pack('>I5I4', now_s, now_ns) .. raw
local start_s, start_ns, count = now_s, now_ns, 0
local known = false
if raw ~= '' then
  if #raw ~= 16 then return answer end
  start_s, start_ns, count = struct.unpack('>I5I4I7', raw)
  -- It counts if now < start + W, and unless start > now + W: the clock was set back.
  local s, ns = now_s - start_s, now_ns - start_ns
  if ns < 0 then s, ns = s - 1, ns + 1000000000 end
  local ended = s > window_s or (s == window_s and ns >= window_ns)
  if s < 0 and ns > 0 then s, ns = s + 1, ns - 1000000000 end
  local ahead = -s > window_s or (-s == window_s and -ns > window_ns)
  known = not ended and not ahead
end
if not known then
  start_s, start_ns, count = now_s, now_ns, 0
  if length > 0 then
    start_s, start_ns = window_start(now_s, now_ns, elapsed(now_s, now_ns, length))
    start_ns = start_ns * 1000
  end
end
-- allow <=> count <= L - cost
if count <= room then
  local value = struct.pack('>I5I4I7', start_s, start_ns, count + cost)
  local s, ns = start_s + window_s, start_ns + window_ns
  if ns >= 1000000000 then s, ns = s + 1, ns - 1000000000 end
  redis.call('SET', KEYS[1], value, ending(s, ns))
end
return answer
