-- For windows that begin at multiples of their length since the epoch.

-- How far the time (s, ns) is into its window of `length` microseconds, in whole microseconds: now mod W. A million is
-- divisible by 64, so seconds in microseconds are exact below 2^59. fmod is exact for all doubles.
local function elapsed(s, ns, length)
  return (math.fmod(s * 1000000, length) + math.floor(ns / 1000)) % length
end

-- The start of that window in seconds and microseconds.
local function window_start(s, ns, into)
  local us = math.floor(ns / 1000) - into % 1000000
  s = s - math.floor(into / 1000000)
  if us < 0 then return s - 1, us + 1000000 end
  return s, us
end
