-- Part of decide.lua: the number that stands for each operation, the largest count of units, and arithmetic with times
-- and spans. A time or a span is two numbers: seconds (_s) and nanoseconds (_ns).
local TAKE, PEEK, FORCE, REFUND, RENEW, RESET, TAKE_NOTHING, SETTLE_LESS, SETTLE_MORE = 1, 2, 3, 4, 5, 6, 7, 8, 9
local MAX_UNITS = 9007199254740991

local function less(a_s, a_ns, b_s, b_ns)
  return a_s < b_s or (a_s == b_s and a_ns < b_ns)
end

local function least(a_s, a_ns, b_s, b_ns)
  if less(b_s, b_ns, a_s, a_ns) then return b_s, b_ns end
  return a_s, a_ns
end

local function most(a_s, a_ns, b_s, b_ns)
  if less(a_s, a_ns, b_s, b_ns) then return b_s, b_ns end
  return a_s, a_ns
end

local function plus(a_s, a_ns, b_s, b_ns)
  local ns = a_ns + b_ns
  if ns >= 1000000000 then return a_s + b_s + 1, ns - 1000000000 end
  return a_s + b_s, ns
end

-- Returns a - b, or 0 if b is larger.
local function minus(a_s, a_ns, b_s, b_ns)
  local s, ns = a_s - b_s, a_ns - b_ns
  if ns < 0 then s, ns = s - 1, ns + 1000000000 end
  if s < 0 then return 0, 0 end
  return s, ns
end
