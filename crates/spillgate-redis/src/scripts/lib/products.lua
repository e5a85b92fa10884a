-- For counters that weight a segment by its share.

-- The 106 bits of a * b for a, b < 2^53, in columns of 2^20, lowest first. No column exceeds 3 * 2^40.
local function columns(a, b)
  local a0, b0 = a % 1048576, b % 1048576
  local a1, b1 = (a - a0) / 1048576 % 1048576, (b - b0) / 1048576 % 1048576
  local a2, b2 = math.floor(a / 1099511627776), math.floor(b / 1099511627776)
  return a0 * b0, a0 * b1 + a1 * b0, a0 * b2 + a1 * b1 + a2 * b0, a1 * b2 + a2 * b1, a2 * b2
end

-- Whether a * b - c <= d * e, exactly. All of them must be below 2^53.
local function at_most(a, b, c, d, e)
  local left, right = a * b, d * e
  -- Products below 2^53 are exact. Otherwise the comparison is exact if the rounding (2^-53 of each) cannot change it.
  if left < 9007199254740992 and right < 9007199254740992 then return left - c <= right end
  if math.abs(left - right) > (left + right) / 2 ^ 50 + c then return left < right end
  local left0, left1, left2, left3, left4 = columns(a, b)
  local right0, right1, right2, right3, right4 = columns(d, e)
  local less0, less1, less2 = columns(c, 1)
  -- The difference, carried from column to column. All columns except the highest end between 0 and 2^20.
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
