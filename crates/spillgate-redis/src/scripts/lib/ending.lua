-- Computes when a key expires. The scripts `take_bucket`, `take_window` and `take_counter` do not use this file, because
-- they set the end themselves (take/each_set.lua).

-- Returns the two arguments of SET that make the key expire at (s, ns), rounded up to a millisecond. If a test has passed
-- the time of the decision, that time differs from the clock of Redis. The key then lives for an hour.
local function ending(s, ns)
  if ARGV[1] ~= '' then return 'PX', 3600000 end
  return 'PXAT', string.format('%d', s * 1000 + math.ceil(ns / 1000000))
end
