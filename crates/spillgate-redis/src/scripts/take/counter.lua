-- The step for one take on a sliding window counter of one segment. decide.lua handles a state with a penalty or with
-- counts of 2^40 and more.
--
-- A step reads raw and at, and sets fits, value, s, ns and stale. It uses `break` to leave the take to decide.lua
-- (command/script.rs).
--
--     ARGV[2]  cost; max_used: the most units in the newest window with which it may fit, L - cost; W in
--              microseconds
local cost, max_used, length = struct.unpack('>I7I7I7', ARGV[2], at)
local at_s, at_ns = now_s, now_ns
local known_s, known_us, count, before = 0, 0, 0, 0
if raw ~= '' then
  if #raw ~= 18 then break end
  known_s, known_us, count, before = struct.unpack('>I5I3I5I5', raw)
  local ahead = (known_s - now_s) * 1000000 + known_us - math.floor(now_ns / 1000)
  if ahead > length then
    known_s, known_us, count, before, stale = 0, 0, 0, 0, true -- the clock was set back
  elseif ahead > 0 then
    at_s, at_ns = known_s, known_us * 1000 -- a late request counts as of the newest window's start
  end
end
local into = elapsed(at_s, at_ns, length)
local start_s, start_us = window_start(at_s, at_ns, into)
local age = (start_s - known_s) * 1000000 + start_us - known_us
if age == length then
  count, before = 0, count
elseif age > 0 then
  count, before = 0, 0
end
-- allow <=> before * (W - e) <= (L - count - cost) * W, with e in nanoseconds
local below = at_ns % 1000
local fraction = math.floor(before / 1000) * below + math.floor(before % 1000 * below / 1000)
fits = count <= max_used and at_most(before, length - into, fraction, max_used - count, length)
if not fits then break end
local us = start_us + 2 * length
s, ns = start_s + math.floor(us / 1000000), us % 1000000 * 1000
value = struct.pack('>I5I3I5I5', start_s, start_us, count + cost, before)
