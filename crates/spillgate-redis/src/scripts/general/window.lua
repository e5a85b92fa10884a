-- Part of decide.lua: fixed windows with a limit L and a length W. A state is the start of a window, and its count of
-- used units.
local function load_window()
  local function read_quota(at)
    local cost, max_used, due, window_s, window_ns, length, at_s, at_ns, marked, next =
      struct.unpack('>I7I7I7I5I4I7I5I4B', ARGV[2], at)
    return {
      cost = cost, max_used = max_used, due = due, window_s = window_s, window_ns = window_ns, length = length,
      at_s = at_s, at_ns = at_ns, marked = marked == 1,
    }, next
  end

  local function read(raw)
    if raw == '' then return {none = true, start_s = 0, start_ns = 0, count = 0}, 0 end
    local start_s, start_ns, count = struct.unpack('>I5I4I7', raw)
    return {none = count == 0, start_s = start_s, start_ns = start_ns, count = count}, 16
  end

  -- Forgets the count if start > now + W, which means that the clock was set back.
  local function adopt(w, quota)
    if less(quota.window_s, quota.window_ns, minus(w.start_s, w.start_ns, now_s, now_ns)) then w.none = true end
  end

  local function ends(w, quota)
    return plus(w.start_s, w.start_ns, quota.window_s, quota.window_ns)
  end

  -- Returns the start and the count of the current window. The window in the state is the current window until it ends.
  -- This also holds for a late request, whose time is before the start of that window. When that window has ended, the
  -- current window is a new one without units.
  local function current(w, quota)
    if not w.none and less(now_s, now_ns, ends(w, quota)) then return w.start_s, w.start_ns, w.count end
    if quota.length == 0 then return now_s, now_ns, 0 end
    local s, us = window_start(now_s, now_ns, elapsed(now_s, now_ns, quota.length))
    return s, us * 1000, 0
  end

  local function add(w, quota, units)
    local start_s, start_ns, count = current(w, quota)
    w.start_s, w.start_ns, w.count = start_s, start_ns, math.min(count + units, MAX_UNITS)
    w.none = w.count == 0
  end

  -- A take fits if count <= L - cost.
  local function fits(w, quota)
    local _, _, count = current(w, quota)
    return count <= quota.max_used
  end

  local function charge(w, quota)
    add(w, quota, quota.cost)
  end

  local function force(w, quota)
    add(w, quota, quota.due)
  end

  -- Subtracts units from the current window. A receipt (which the caller got for the take) names the time of the take.
  -- If a receipt is given, units are subtracted only if that time is in the current window.
  local function refund(w, quota)
    if w.none then return end
    add(w, quota, 0)
    if quota.marked then
      if less(quota.at_s, quota.at_ns, w.start_s, w.start_ns) then return end
      if not less(quota.at_s, quota.at_ns, ends(w, quota)) then return end
    end
    w.count = math.max(w.count - quota.cost, 0)
    w.none = w.count == 0
  end

  local function bytes(w)
    return struct.pack('>I5I4I7', w.start_s, w.start_ns, w.count)
  end

  local function nothing()
    return string.rep('\0', 16)
  end

  return {
    read_quota = read_quota, read = read, adopt = adopt, fits = fits, charge = charge, force = force, refund = refund,
    ends = ends, bytes = bytes, nothing = nothing, commands = {'SET', 'DEL'},
  }
end
