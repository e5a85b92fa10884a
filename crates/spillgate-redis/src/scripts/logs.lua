-- Shared by what keeps logs: a list with one element of eight bytes for each unit that was taken, oldest first.
-- An element is a time in 64 bits: 34 of seconds, 30 of the nanoseconds below one.

local function log_element(s, ns)
  return struct.pack('>I4I4', math.floor(s / 4), s % 4 * 1073741824 + ns)
end

local function log_time(element)
  local high, low = struct.unpack('>I4I4', element)
  return high * 4 + math.floor(low / 1073741824), low % 1073741824
end

-- How many of the `size` elements from place `head` on are a window old at (s, ns), the oldest being first: in steps
-- that double and then halve, since it is mostly few.
local function log_expired(key, head, size, window_s, window_ns, s, ns)
  local function all_are(count)
    if count > size then return false end
    local at_s, at_ns = log_time(redis.call('LINDEX', key, head + count - 1))
    local old_s, old_ns = s - at_s, ns - at_ns
    if old_ns < 0 then old_s, old_ns = old_s - 1, old_ns + 1000000000 end
    return old_s > window_s or (old_s == window_s and old_ns >= window_ns)
  end
  local count, step = 0, 1
  while all_are(count + step) do count, step = count + step, step * 2 end
  while step > 1 do
    step = step / 2
    if all_are(count + step) then count = count + step end
  end
  return count
end

-- A Lua call takes no more than some thousand arguments.
local function log_push(key, element, units)
  if units == 1 then return redis.call('RPUSH', key, element) end
  local elements = {}
  for i = 1, math.min(units, 4000) do elements[i] = element end
  for _ = 1, math.floor(units / 4000) do redis.call('RPUSH', key, unpack(elements)) end
  local left = units % 4000
  if left > 0 then redis.call('RPUSH', key, unpack(elements, 1, left)) end
end

-- What a caller is told of a log is elements, each followed by how many units are of that time, oldest first.

-- The `count` units from place `from` on, told by no more times than those of the units at `ranks` (of the oldest
-- first; none but 1 to count) and of the newest.
local function log_digest(key, from, count, ranks)
  local told, known, last, units = {}, 0, nil, 0
  ranks[#ranks + 1] = count
  for _, rank in ipairs(ranks) do
    if rank > known and rank <= count then
      local element = redis.call('LINDEX', key, from + rank - 1)
      if element ~= last then units = 0 else told[#told] = nil end
      units = units + rank - known
      told[#told + 1] = element .. struct.pack('>I3', units)
      known, last = rank, element
    end
  end
  return table.concat(told)
end

-- All of them.
local function log_whole(key, from)
  local told, last, units = {}, nil, 0
  for _, element in ipairs(redis.call('LRANGE', key, from, -1)) do
    if element ~= last then
      if last then told[#told + 1] = last .. struct.pack('>I3', units) end
      last, units = element, 0
    end
    units = units + 1
  end
  told[#told + 1] = last .. struct.pack('>I3', units)
  return table.concat(told)
end
