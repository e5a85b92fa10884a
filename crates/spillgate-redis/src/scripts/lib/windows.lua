-- Functions for windows that begin at multiples of their length since the epoch.

-- Returns how many whole microseconds of the current window have passed at the time (s, ns). `length` is the length of
-- the window in microseconds. `s * 1000000` is exact below 2^59, because it is a multiple of 64 and a double has 53
-- bits. fmod is exact for all doubles.
local function elapsed(s, ns, length)
  return (math.fmod(s * 1000000, length) + math.floor(ns / 1000)) % length
end

-- Returns the start of the window in seconds and microseconds, if `into` microseconds of it have passed at (s, ns).
local function window_start(s, ns, into)
  local us = math.floor(ns / 1000) - into % 1000000
  s = s - math.floor(into / 1000000)
  if us < 0 then return s - 1, us + 1000000 end
  return s, us
end
