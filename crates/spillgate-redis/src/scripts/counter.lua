-- Shared by decide.lua: sliding window counters of n segments of w = W/n. The state is the start of the newest
-- segment and n + 1 counts, newest first; each takes five bytes, or seven where one is 2^40 or more.

local counter = {}

function counter.hit(hit, at)
  hit.cost, hit.room, hit.due, hit.length, hit.segments, hit.at_s, hit.at_us, hit.marked, at =
    struct.unpack('>I7I7I7I7BI5I3B', ARGV[2], at)
  return at
end

local function forget(c, hit)
  c.none, c.start_s, c.start_us, c.counts = true, 0, 0, {}
  for i = 1, hit.segments + 1 do c.counts[i] = 0 end
end

function counter.read(c, raw, hit)
  local size = hit.segments + 1
  -- A penalty of nine bytes may follow.
  local left = #raw - 8 - 7 * size
  local width = (left == 0 or left == 9) and 7 or 5
  c.start_s, c.start_us = struct.unpack('>I5I3', raw)
  c.counts = {struct.unpack('>' .. string.rep('I' .. width, size), raw, 9)}
  c.counts[size + 1] = nil -- where reading ended
  return 8 + size * width
end

function counter.adopt(c, hit)
  if c.none then return forget(c, hit) end
  -- start > now + W: the clock was set back.
  local ahead = (c.start_s - now_s) * 1000000 + c.start_us - math.floor(now_ns / 1000)
  if ahead > hit.length * hit.segments then forget(c, hit) end
end

-- The segment that now lies in, how far in microseconds, and how many have begun since the state's newest. A late
-- request counts as of the start of the newest.
local function view(c, hit)
  local s, ns = most(now_s, now_ns, c.start_s, c.start_us * 1000)
  local into = elapsed(s, ns, hit.length)
  local start_s, start_us = window_start(s, ns, into)
  local shift = math.floor(((start_s - c.start_s) * 1000000 + start_us - c.start_us) / hit.length)
  return start_s, start_us, into, ns % 1000, math.min(shift, hit.segments + 1)
end

-- allow <=> oldest * (w - e) <= (L - cost - rest) * w, with e in nanoseconds
function counter.fits(c, hit)
  local _, _, into, below, shift = view(c, hit)
  local oldest, rest = c.counts[hit.segments + 1 - shift] or 0, 0
  for i = 1, hit.segments - shift do rest = rest + c.counts[i] end
  local fraction = math.floor(oldest / 1000) * below + math.floor(oldest % 1000 * below / 1000)
  return rest <= hit.room and at_most(oldest, hit.length - into, fraction, hit.room - rest, hit.length)
end

local function advance(c, hit)
  local start_s, start_us, _, _, shift = view(c, hit)
  for i = hit.segments + 1, 1, -1 do c.counts[i] = i > shift and c.counts[i - shift] or 0 end
  c.start_s, c.start_us = start_s, start_us
end

local function counter_add(c, hit, units)
  advance(c, hit)
  c.counts[1] = math.min(c.counts[1] + units, MAX_UNITS)
  c.none = false
end

function counter.charge(c, hit)
  counter_add(c, hit, hit.cost)
end

function counter.force(c, hit)
  counter_add(c, hit, hit.due)
end

-- With a receipt in the segment of the take, if that is still there.
function counter.refund(c, hit)
  if c.none then return end
  advance(c, hit)
  local index = 1
  if hit.marked == 1 then
    index = 1 + ((c.start_s - hit.at_s) * 1000000 + c.start_us - hit.at_us) / hit.length
  end
  local count = c.counts[index]
  if count then c.counts[index] = math.max(count - hit.cost, 0) end
  c.none = math.max(unpack(c.counts)) == 0
end

-- The newest segment with units counts until W + w after its start.
function counter.ends(c, hit)
  local newest = 1
  while c.counts[newest] == 0 do newest = newest + 1 end
  local us = c.start_us + (hit.segments + 2 - newest) * hit.length
  return c.start_s + math.floor(us / 1000000), us % 1000000 * 1000
end

function counter.bytes(c)
  local width = math.max(unpack(c.counts)) < 1099511627776 and 'I5' or 'I7'
  local size = #c.counts
  return struct.pack('>I5I3' .. string.rep(width, size), c.start_s, c.start_us, unpack(c.counts))
end
