-- Shared by decide.lua: fixed windows. The state is a start and a count.
local MAX_UNITS = 9007199254740991

local window = {}

function window.hit(hit, at)
  hit.cost, hit.room, hit.due, hit.window_s, hit.window_ns, hit.length, hit.at_s, hit.at_ns, hit.marked, at =
    struct.unpack('>I7I7I7I5I4I7I5I4B', ARGV[2], at)
  return at
end

function window.read(w, raw)
  w.start_s, w.start_ns, w.count = struct.unpack('>I5I4I7', raw)
  return 16
end

function window.adopt(w, hit)
  -- start > now + W: the clock was set back.
  if w.none or less(hit.window_s, hit.window_ns, minus(w.start_s, w.start_ns, now_s, now_ns)) then
    w.none, w.count = true, 0
  end
end

-- The window that counts now: the state's, also for times before it, or a new one.
local function window_now(w, hit)
  if not w.none then
    local end_s, end_ns = plus(w.start_s, w.start_ns, hit.window_s, hit.window_ns)
    if less(now_s, now_ns, end_s, end_ns) then return w.start_s, w.start_ns, w.count end
  end
  if hit.length == 0 then return now_s, now_ns, 0 end
  local s, us = window_start(now_s, now_ns, elapsed(now_s, now_ns, hit.length))
  return s, us * 1000, 0
end

local function window_add(w, hit, units)
  w.start_s, w.start_ns, w.count = window_now(w, hit)
  w.count = math.min(w.count + units, MAX_UNITS)
  w.none = w.count == 0
end

-- allow <=> count <= L - cost
function window.fits(w, hit)
  local _, _, count = window_now(w, hit)
  return count <= hit.room
end

function window.charge(w, hit)
  window_add(w, hit, hit.cost)
end

function window.force(w, hit)
  window_add(w, hit, hit.due)
end

-- With a receipt only in the window of the take.
function window.refund(w, hit)
  if w.none then return end
  local start_s, start_ns = window_now(w, hit)
  local end_s, end_ns = plus(start_s, start_ns, hit.window_s, hit.window_ns)
  local before = less(hit.at_s, hit.at_ns, start_s, start_ns)
  local here = not before and less(hit.at_s, hit.at_ns, end_s, end_ns)
  window_add(w, hit, 0)
  if hit.marked == 0 or here then w.count = math.max(w.count - hit.cost, 0) end
  w.none = w.count == 0
end

function window.ends(w, hit)
  return plus(w.start_s, w.start_ns, hit.window_s, hit.window_ns)
end

function window.bytes(w)
  return struct.pack('>I5I4I7', w.start_s, w.start_ns, w.count)
end
