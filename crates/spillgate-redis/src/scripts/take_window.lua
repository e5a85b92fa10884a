-- One take on a fixed window: whether it fits, the state after it, and when that ends; and whether the state before
-- no longer counts. Nothing for a state with a penalty: a case for decide.lua.
-- ARGV[2]  cost; room: the most units beside which it fits, L - cost; W as a time; W in microseconds where windows
--          are anchored at the epoch, 0 where at the first hit
local function take_window(raw, at)
  local cost, room, window_s, window_ns, length = struct.unpack('>I7I7I5I4I7', ARGV[2], at)
  local start_s, start_ns, count, fresh, stale = now_s, now_ns, 0, true, false
  if raw ~= '' then
    if #raw ~= 16 then return end
    start_s, start_ns, count = struct.unpack('>I5I4I7', raw)
    -- It counts until start + W, and not if start > now + W: then the clock was set back.
    local s, ns = now_s - start_s, now_ns - start_ns
    if ns < 0 then s, ns = s - 1, ns + 1000000000 end
    fresh = s > window_s or (s == window_s and ns >= window_ns)
    if s < 0 and ns > 0 then s, ns = s + 1, ns - 1000000000 end
    stale = -s > window_s or (-s == window_s and -ns > window_ns)
  end
  if fresh or stale then
    start_s, start_ns, count = now_s, now_ns, 0
    if length > 0 then
      start_s, start_ns = window_start(now_s, now_ns, elapsed(now_s, now_ns, length))
      start_ns = start_ns * 1000
    end
  end
  -- allow <=> count <= L - cost
  if count > room then return false end
  local s, ns = start_s + window_s, start_ns + window_ns
  if ns >= 1000000000 then s, ns = s + 1, ns - 1000000000 end
  return true, struct.pack('>I5I4I7', start_s, start_ns, count + cost), s, ns, stale
end

