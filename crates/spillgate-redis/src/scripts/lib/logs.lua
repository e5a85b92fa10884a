-- For logs: one element for each unit that was taken, oldest first. If the key ever had a penalty, an element with its
-- end comes before them. The two forms (log_list.lua, log_zset.lua) have these functions:
--
--     size(key)                         the number of elements
--     until_when(key)                   for a key with elements: the end of the penalty and its length, if the first
--                                       element is one. An older server wrote no length
--     time(key, position)               the time of the unit at this position
--     all(key, from)                    the times of all units from this position on, as elements
--     push(key, s, ns, units)           adds units after all others
--     trim(key, from)                   removes everything before this position
--     remove(key, head, size, s, ns, units)  removes at most this many units of that time, and returns how many
--     span(key, head, size, s, ns)      the first and the last position of that time
--     shut_out(key, head, s, ns, span_s, span_ns)  writes the end of a penalty before all units, and replaces the
--                                       one before if head is 1. The length may be missing
--     commands                          the commands that may follow the first read

-- A time in 64 bits: 34 of seconds, 30 of the nanoseconds below one.
local function log_element(s, ns)
  return struct.pack('>I4I4', math.floor(s / 4), s % 4 * 1073741824 + ns)
end

local function log_time(element)
  local high, low = struct.unpack('>I4I4', element)
  return high * 4 + math.floor(low / 1073741824), low % 1073741824
end

-- How many of the first `size` elements satisfy `is_so`. They must be the first ones: after one that does not, none
-- does. `is_so(count)` tests the last of the first `count` elements. The step doubles and then halves, since the answer
-- is mostly small.
local function log_search(size, is_so)
  local count, step = 0, 1
  while count + step <= size and is_so(count + step) do count, step = count + step, step * 2 end
  while step > 1 do
    step = step / 2
    if count + step <= size and is_so(count + step) then count = count + step end
  end
  return count
end

-- How many of the `size` elements from position `head` on are at least a window old at (s, ns).
local function log_expired(form, key, head, size, window_s, window_ns, s, ns)
  return log_search(size, function(count)
    local at_s, at_ns = form.time(key, head + count - 1)
    local old_s, old_ns = s - at_s, ns - at_ns
    if old_ns < 0 then old_s, old_ns = old_s - 1, old_ns + 1000000000 end
    return old_s > window_s or (old_s == window_s and old_ns >= window_ns)
  end)
end

-- A reply shows a log as elements, each followed by the number of units of that time, oldest first.

-- The `count` units from position `from` on. It shows only the times of the units at `ranks` and of the newest unit.
-- Rank 1 is the oldest; ranks outside 1 to count are ignored.
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

-- All units from position `from` on.
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

