-- Compares products exactly, for sliding window counters. A counter multiplies the count of its oldest segment by the
-- part of the segment that is still in the window. Such products can exceed 2^53, and Lua numbers (doubles) are then
-- no longer exact.

-- Returns a * b as five numbers n0 to n4: a * b = n0 + n1 * 2^20 + n2 * 2^40 + n3 * 2^60 + n4 * 2^80. Both a and b must be
-- below 2^53. None of the five numbers exceeds 3 * 2^40, so each of them is exact.
local function columns(a, b)
  local a0, b0 = a % 1048576, b % 1048576
  local a1, b1 = (a - a0) / 1048576 % 1048576, (b - b0) / 1048576 % 1048576
  local a2, b2 = math.floor(a / 1099511627776), math.floor(b / 1099511627776)
  return a0 * b0, a0 * b1 + a1 * b0, a0 * b2 + a1 * b1 + a2 * b0, a1 * b2 + a2 * b1, a2 * b2
end

-- Returns whether a * b - c <= d * e, without a rounding error. All five numbers must be below 2^53.
local function at_most(a, b, c, d, e)
  local left, right = a * b, d * e
  -- Two products below 2^53 are exact. Larger products are rounded, each by at most 2^-53 of its value. If the
  -- products differ by more than these errors plus c, rounding cannot change the result.
  if left < 9007199254740992 and right < 9007199254740992 then return left - c <= right end
  if math.abs(left - right) > (left + right) / 2 ^ 50 + c then return left < right end
  local left0, left1, left2, left3, left4 = columns(a, b)
  local right0, right1, right2, right3, right4 = columns(d, e)
  local less0, less1, less2 = columns(c, 1)
  -- Computes a * b - c - d * e in columns of 20 bits, with a carry from each column to the next. `digits` is the sum of
  -- the lower four columns. The result is at most 0 if the highest column is negative or all columns are 0.
  local carry = left0 - right0 - less0
  local digits = carry % 1048576
  carry = math.floor(carry / 1048576) + left1 - right1 - less1
  digits = digits + carry % 1048576
  carry = math.floor(carry / 1048576) + left2 - right2 - less2
  digits = digits + carry % 1048576
  carry = math.floor(carry / 1048576) + left3 - right3
  digits = digits + carry % 1048576
  local highest = math.floor(carry / 1048576) + left4 - right4
  return highest < 0 or (highest == 0 and digits == 0)
end
