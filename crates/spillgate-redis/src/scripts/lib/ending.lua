-- Shared by scripts that are not for one take on one state.

-- How the time of a key's end is told to SET and the like: rounded up to a millisecond. The server's clock
-- knows nothing of a time that was passed, so such keys live an hour.
local function ending(s, ns)
  if ARGV[1] ~= '' then return 'PX', 3600000 end
  return 'PXAT', string.format('%d', s * 1000 + math.ceil(ns / 1000000))
end
