-- Part of decide.lua: sliding window counters. A counter has a limit L and a window W, which has n segments of the
-- length w = W/n. A state is the start of the newest segment and n + 1 counts, newest first. A penalty can follow: 9
-- bytes (its end), or 19 bytes (its end, its length and a last byte). Each count has seven bytes if any count is 2^40
-- or more, or if a penalty of 19 bytes follows. Otherwise each count has five bytes. The length of the whole value
-- shows how many bytes each count has.
local function load_counter()
  local function read_quota(at)
    local cost, max_used, due, length, segments, at_s, at_us, marked, next =
      struct.unpack('>I7I7I7I7BI5I3B', ARGV[2], at)
    return {
      cost = cost, max_used = max_used, due = due, length = length, segments = segments,
      at_s = at_s, at_us = at_us, marked = marked == 1,
    }, next
  end

  local function forget(c, quota)
    c.none, c.start_s, c.start_us, c.counts = true, 0, 0, {}
    for i = 1, quota.segments + 1 do c.counts[i] = 0 end
  end

  local function read(raw, quota)
    local c = {none = false, start_s = 0, start_us = 0, counts = false}
    if raw == '' then
      forget(c, quota)
      return c, 0
    end
    local size = quota.segments + 1
    -- After the counts there is nothing, or a penalty of 9 or 19 bytes.
    local left = #raw - 8 - 7 * size
    local width = (left == 0 or left == 9 or left == 19) and 7 or 5
    c.start_s, c.start_us = struct.unpack('>I5I3', raw)
    c.counts = {struct.unpack('>' .. string.rep('I' .. width, size), raw, 9)}
    c.counts[size + 1] = nil -- the last result of unpack is the position after the counts
    c.none = math.max(unpack(c.counts)) == 0
    return c, 8 + size * width
  end

  -- Forgets all counts if start > now + W, because such a state means that the clock was set back.
  local function adopt(c, quota)
    local ahead = (c.start_s - now_s) * 1000000 + c.start_us - math.floor(now_ns / 1000)
    if ahead > quota.length * quota.segments then forget(c, quota) end
  end

  -- Returns five numbers. The first two are the start of the segment that contains the time of the decision. The next two
  -- are the time since that start: whole microseconds, and the nanoseconds that remain. The last number is how many
  -- segments have begun since the newest segment of the state. If the time of the decision is before the newest
  -- segment, the start of the newest segment is used instead.
  local function view(c, quota)
    local s, ns = most(now_s, now_ns, c.start_s, c.start_us * 1000)
    local into = elapsed(s, ns, quota.length)
    local start_s, start_us = window_start(s, ns, into)
    local shift = math.floor(((start_s - c.start_s) * 1000000 + start_us - c.start_us) / quota.length)
    return start_s, start_us, into, ns % 1000, math.min(shift, quota.segments + 1)
  end

  -- Let w be the length of a segment, and e the time since the start of the segment that contains the decision, exact
  -- to the nanosecond. Let `oldest` be the count of the oldest segment, and `rest` the sum of the newer counts. A take
  -- fits if oldest * (w - e) <= (L - cost - rest) * w. Here L is the quota's limit.
  local function fits(c, quota)
    local _, _, into, below, shift = view(c, quota)
    local oldest, rest = c.counts[quota.segments + 1 - shift] or 0, 0
    for i = 1, quota.segments - shift do rest = rest + c.counts[i] end
    local fraction = math.floor(oldest / 1000) * below + math.floor(oldest % 1000 * below / 1000)
    return rest <= quota.max_used
      and at_most(oldest, quota.length - into, fraction, quota.max_used - rest, quota.length)
  end

  local function advance(c, quota)
    local start_s, start_us, _, _, shift = view(c, quota)
    for i = quota.segments + 1, 1, -1 do c.counts[i] = i > shift and c.counts[i - shift] or 0 end
    c.start_s, c.start_us = start_s, start_us
  end

  local function add(c, quota, units)
    advance(c, quota)
    c.counts[1] = math.min(c.counts[1] + units, MAX_UNITS)
    c.none = false
  end

  local function charge(c, quota)
    add(c, quota, quota.cost)
  end

  local function force(c, quota)
    add(c, quota, quota.due)
  end

  -- A receipt (which the caller got for the take) names the segment in which the units were taken. The refund subtracts
  -- the units from that segment. If the segment has left the state, nothing is refunded. Without a receipt the refund
  -- subtracts from the newest segment.
  local function refund(c, quota)
    if c.none then return end
    advance(c, quota)
    local index = 1
    if quota.marked then
      index = 1 + ((c.start_s - quota.at_s) * 1000000 + c.start_us - quota.at_us) / quota.length
    end
    local count = c.counts[index]
    if count then c.counts[index] = math.max(count - quota.cost, 0) end
    c.none = math.max(unpack(c.counts)) == 0
  end

  -- Returns the time from which no unit of the state counts any more: W + w after the start of the newest segment that
  -- has units.
  local function ends(c, quota)
    local newest = 1
    while c.counts[newest] == 0 do newest = newest + 1 end
    local us = c.start_us + (quota.segments + 2 - newest) * quota.length
    return c.start_s + math.floor(us / 1000000), us % 1000000 * 1000
  end

  local function nothing(quota)
    return string.rep('\0', 8 + 7 * (quota.segments + 1))
  end

  local function bytes(c, is_before_span)
    local width = (is_before_span or math.max(unpack(c.counts)) >= 1099511627776) and 'I7' or 'I5'
    return struct.pack('>I5I3' .. string.rep(width, #c.counts), c.start_s, c.start_us, unpack(c.counts))
  end

  return {
    read_quota = read_quota, read = read, adopt = adopt, fits = fits, charge = charge, force = force, refund = refund,
    ends = ends, bytes = bytes, nothing = nothing, commands = {'SET', 'DEL'},
  }
end
