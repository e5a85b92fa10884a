-- For scripts other than those of single takes.

-- The arguments that tell SET when a key ends, rounded up to a millisecond. If a test passes the time, the server's
-- clock does not know it, so the keys live for an hour.
local function ending(s, ns)
  if ARGV[1] ~= '' then return 'PX', 3600000 end
  return 'PXAT', string.format('%d', s * 1000 + math.ceil(ns / 1000000))
end
