-- Shared by what keeps logs: one element for each unit that was taken, oldest first, and before them, if the key ever
-- was shut out, one that says until when. A form (log_list.lua, log_zset.lua) has
--   size(key)                         the number of elements
--   until_when(key)                   what the first element says, if it is no unit: until when, and for how long it
--                                     was unless an older server wrote it; of a key with elements
--   time(key, place)                  of the unit there
--   all(key, from)                    the times of all units from there on, as elements
--   push(key, s, ns, units)           adds units after all others
--   trim(key, from)                   removes what is before that place
--   remove(key, head, size, s, ns, units)  removes at most so many units of that time: how many
--   span(key, head, size, s, ns)      the first and the last place of that time
--   shut_out(key, head, s, ns, span_s, span_ns)  puts that first, in place of what there was if head is 1; the span
--                                     may be missing
--   commands                          all that may follow the first look

-- A time in 64 bits: 34 of seconds, 30 of the nanoseconds below one.
local function log_element(s, ns)
  return struct.pack('>I4I4', math.floor(s / 4), s % 4 * 1073741824 + ns)
end

local function log_time(element)
  local high, low = struct.unpack('>I4I4', element)
  return high * 4 + math.floor(low / 1073741824), low % 1073741824
end

-- How many of `size` elements in a row are so; `is_so(count)` says it of the last of the first `count`, and after one
-- that is not none is. In steps that double and then halve, since it is mostly few.
local function log_search(size, is_so)
  local count, step = 0, 1
  while count + step <= size and is_so(count + step) do count, step = count + step, step * 2 end
  while step > 1 do
    step = step / 2
    if count + step <= size and is_so(count + step) then count = count + step end
  end
  return count
end

-- How many of the `size` elements from place `head` on are a window old at (s, ns).
local function log_expired(form, key, head, size, window_s, window_ns, s, ns)
  return log_search(size, function(count)
    local at_s, at_ns = form.time(key, head + count - 1)
    local old_s, old_ns = s - at_s, ns - at_ns
    if old_ns < 0 then old_s, old_ns = old_s - 1, old_ns + 1000000000 end
    return old_s > window_s or (old_s == window_s and old_ns >= window_ns)
  end)
end

-- What a caller is told of a log is elements, each followed by how many units are of that time, oldest first.

-- The `count` units from place `from` on, told by no more times than those of the units at `ranks` (of the oldest
-- first; none but 1 to count) and of the newest.
local function log_digest(form, key, from, count, ranks)
  local told, known, last, units = {}, 0, nil, 0
  ranks[#ranks + 1] = count
  for _, rank in ipairs(ranks) do
    if rank > known and rank <= count then
      local element = log_element(form.time(key, from + rank - 1))
      if element ~= last then units = 0 else told[#told] = nil end
      units = units + rank - known
      told[#told + 1] = element .. struct.pack('>I3', units)
      known, last = rank, element
    end
  end
  return table.concat(told)
end

-- All of them.
local function log_whole(form, key, from)
  local told, last, units = {}, nil, 0
  for _, element in ipairs(form.all(key, from)) do
    if element ~= last then
      if last then told[#told + 1] = last .. struct.pack('>I3', units) end
      last, units = element, 0
    end
    units = units + 1
  end
  told[#told + 1] = last .. struct.pack('>I3', units)
  return table.concat(told)
end

