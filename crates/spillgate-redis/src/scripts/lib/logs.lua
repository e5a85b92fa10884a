-- Functions that all scripts for sliding window logs use. A log has one element for each unit that was taken, oldest
-- first. If the key ever had a penalty, one more element comes before the units: the end of that penalty. `head` is the
-- number of such elements: 0 or 1. `size` is the number of units. Positions count from 0 and include the penalty.
--
-- A log is stored as a list (log_list.lua) or as a sorted set (log_zset.lua). Both files return a table, `form`, with
-- these functions. (s, ns) is a time in seconds and nanoseconds:
--
--     size(key)                         returns the number of elements
--     until_when(key)                   returns the end and the length of the penalty if the first element is a
--                                       penalty, but only the end if an older script wrote the penalty. The key must
--                                       exist
--     time(key, position)               returns the time of the unit at this position
--     all(key, from)                    returns the units from this position to the last one, as `log_element` packs
--                                       their times
--     push(key, s, ns, units)           adds this many units of this time at the end
--     trim(key, from)                   removes all elements before this position
--     remove(key, head, size, s, ns, units)  removes at most `units` units of this time. Returns how many were removed
--     span(key, head, size, s, ns)      returns the positions of the first and the last unit of this time
--     shut_out(key, head, s, ns, span_s, span_ns)  writes a penalty that ends at (s, ns) before all units. If `head` is
--                                       1, the new penalty replaces the old one. The length (span_s, span_ns) may be
--                                       nil
--     commands                          a list: the commands that a script may call after it has read the log

-- Packs a time into eight bytes: 34 bits of seconds, and 30 bits of nanoseconds.
local function log_element(s, ns)
  return struct.pack('>I4I4', math.floor(s / 4), s % 4 * 1073741824 + ns)
end

local function log_time(element)
  local high, low = struct.unpack('>I4I4', element)
  return high * 4 + math.floor(low / 1073741824), low % 1073741824
end

-- Returns how many of the `size` oldest units satisfy a condition. `is_so(count)` returns whether unit number `count`,
-- counted from 1, satisfies the condition. If a unit does not satisfy the condition, no later unit does. The search
-- begins with small steps, because the result is mostly small.
local function log_search(size, is_so)
  local count, step = 0, 1
  while count + step <= size and is_so(count + step) do count, step = count + step, step * 2 end
  while step > 1 do
    step = step / 2
    if count + step <= size and is_so(count + step) then count = count + step end
  end
  return count
end

-- Returns how many units have left the window at the time (s, ns): their age is at least one window.
local function log_expired(form, key, head, size, window_s, window_ns, s, ns)
  return log_search(size, function(count)
    local at_s, at_ns = form.time(key, head + count - 1)
    local old_s, old_ns = s - at_s, ns - at_ns
    if old_ns < 0 then old_s, old_ns = old_s - 1, old_ns + 1000000000 end
    return old_s > window_s or (old_s == window_s and old_ns >= window_ns)
  end)
end

-- A reply shows a log as pairs, oldest first. Each pair is a packed time and a number of units.

-- Returns such pairs for the `count` units that begin at position `from`. Only some units are shown with their exact
-- times: the units at `ranks`, and the newest unit. A unit in between is counted with the next unit that is shown.
-- Rank 1 is the oldest unit. A rank below 1 or above `count` is ignored.
local function log_digest(form, key, from, count, ranks)
  local shown, known, last, units = {}, 0, nil, 0
  ranks[#ranks + 1] = count
  for _, rank in ipairs(ranks) do
    if rank > known and rank <= count then
      local element = log_element(form.time(key, from + rank - 1))
      if element ~= last then units = 0 else shown[#shown] = nil end
      units = units + rank - known
      shown[#shown + 1] = element .. struct.pack('>I3', units)
      known, last = rank, element
    end
  end
  return table.concat(shown)
end

-- Returns such pairs for all units from position `from` to the last one, each unit with its exact time.
local function log_whole(form, key, from)
  local shown, last, units = {}, nil, 0
  for _, element in ipairs(form.all(key, from)) do
    if element ~= last then
      if last then shown[#shown + 1] = last .. struct.pack('>I3', units) end
      last, units = element, 0
    end
    units = units + 1
  end
  shown[#shown + 1] = last .. struct.pack('>I3', units)
  return table.concat(shown)
end

