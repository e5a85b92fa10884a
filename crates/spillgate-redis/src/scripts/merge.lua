-- The script `merge`: charges what servers of other regions have admitted.
--
-- Each of these servers adds up the units that it admitted of a state in a span of time, and tells the total. A hash next
-- to the state has, for each server, the total that is charged already. The script charges the difference, in one step
-- with the new total. So a total may come twice, late, or in any order.
--
--     KEYS     for each total, the key of the state and the key of the hash
--     ARGV[1]  the time of the charge; '' means the current time of Redis
--     ARGV[2]  for each total: the number of the algorithm (1 bucket, 2 window, 3 counter); the id of the server; the
--              total; how long the hash lives, in milliseconds; the start of the span in seconds and microseconds; and
--              what `read_quota` of the algorithm reads
--     RETURNS  for each total one byte: 0 new units are charged, 1 all units were known, 2 the window has not begun, 3 the
--              window has ended, 4 the state or the hash cannot be read. After 2, 3 and 4 nothing is changed
local NEW, KNOWN, NOT_BEGUN, ENDED, FAILED = '\0', '\1', '\2', '\3', '\4'
local loaders, loaded, sizes = {load_bucket, load_window, load_counter}, {}, {65, 47, 38}

-- Returns min(units * T, top). The product is exact: it is below 2^63 ns if it is not above `top`, so each of its parts has
-- less than 53 bits.
local function debt_of(units, t_s, t_ns, top_s, top_ns)
  if units * (t_s + t_ns / 1000000000) > 5000000000 then return top_s, top_ns end
  local low = units % 1000000
  local ms, ns = (units - low) / 1000000 * t_ns, low * t_ns
  local s, carry = math.floor(ms / 1000), math.floor(ns / 1000000000)
  s, ns = plus(s + carry, ns - carry * 1000000000, units * t_s, (ms - s * 1000) * 1000000)
  return least(s, ns, top_s, top_ns)
end

-- Charges a state in any form, as decide.lua does it. Returns its bytes and when it ends.
local function charged(key, number, at, units)
  local algorithm = loaded[number] or loaders[number]()
  loaded[number] = algorithm
  local quota = algorithm.read_quota(at)
  local state = {algorithm = algorithm, key = key, until_s = 0, until_ns = 0, span_s = false, span_ns = false}
  open_string(state, algorithm, quota)
  algorithm.adopt(state.body, quota)
  if number == 1 then
    quota.due_s, quota.due_ns = debt_of(units, quota.t_s, quota.t_ns, quota.top_s, quota.top_ns)
  else
    quota.due = units
  end
  algorithm.force(state.body, quota)
  return after(state, quota)
end

-- Charges a bucket of this quota, or a window. Returns nothing if only `charged` can do it.
local function charged_plain(raw, number, at, units, start_s, start_us)
  if number == 1 then
    local top_s, top_ns, quota = struct.unpack('>I5I4c10', ARGV[2], at + 27)
    local debt_s, debt_ns = 0, 0
    if raw ~= '' then
      if #raw ~= 19 or string.sub(raw, 10) ~= quota then return end
      local tat_s, tat_ns = struct.unpack('>I5I4', raw)
      debt_s, debt_ns = minus(tat_s, tat_ns, now_s, now_ns)
      if not less(debt_s, debt_ns, top_s, top_ns) then return end
    end
    local t_s, t_ns = struct.unpack('>I5I4', quota)
    local s, ns = debt_of(units, t_s, t_ns, top_s, top_ns)
    s, ns = plus(debt_s, debt_ns, s, ns)
    s, ns = least(s, ns, top_s, top_ns)
    s, ns = plus(now_s, now_ns, s, ns)
    return struct.pack('>I5I4', s, ns) .. quota, s, ns
  elseif number == 2 and (raw == '' or #raw == 16) then
    local count = 0
    if raw ~= '' then
      local s, ns, known = struct.unpack('>I5I4I7', raw)
      if s == start_s and ns == start_us * 1000 then count = known end
    end
    local s, ns = plus(start_s, start_us * 1000, struct.unpack('>I5I4', ARGV[2], at + 21))
    return struct.pack('>I5I4I7', start_s, start_us * 1000, math.min(count + units, MAX_UNITS)), s, ns
  end
end

-- Returns whether the span of a total may be charged now, or else NOT_BEGUN or ENDED, and the start of the window in which a
-- take counts now. It is that of the state if the clock was set back by at most a window. The units of a counter also count
-- one window later.
local function in_time(raw, number, at, span_s, span_us)
  if number == 1 then return true end
  local length = struct.unpack('>I7', ARGV[2], at + (number == 2 and 30 or 21))
  local s, us = window_start(now_s, now_ns, elapsed(now_s, now_ns, length))
  if #raw >= 9 then
    local start_s, start_us = struct.unpack(number == 2 and '>I5I4' or '>I5I3', raw)
    if number == 2 then start_us = math.floor(start_us / 1000) end
    local ahead = (start_s - now_s) * 1000000 + start_us - math.floor(now_ns / 1000)
    if ahead > 0 and ahead <= length then s, us = start_s, start_us end
  end
  local behind = (s - span_s) * 1000000 + us - span_us
  if behind < 0 then return NOT_BEGUN end
  if behind > (number == 3 and length or 0) then return ENDED end
  return true, s, us
end

local function merge(key, hash, at)
  local number, server, total, life, span_s, span_us, quota_at = struct.unpack('>Bc8I7I7I5I3', ARGV[2], at)
  local raw, seen = redis.pcall('GET', key) or '', redis.pcall('HGET', hash, server) or '0'
  if type(raw) == 'table' or type(seen) == 'table' then return FAILED end
  if #seen > 16 or not string.find(seen, '^%d+$') then return FAILED end
  local is_in_time, start_s, start_us = in_time(raw, number, quota_at, span_s, span_us)
  if is_in_time ~= true then return is_in_time end
  local units = total - tonumber(seen)
  if units <= 0 then return KNOWN end
  local value, s, ns = charged_plain(raw, number, quota_at, units, start_s, start_us)
  if not value then
    local is_read
    is_read, value, s, ns = pcall(charged, key, number, quota_at, units)
    if not is_read then return FAILED end
  end
  if value ~= raw then redis.call('SET', key, value, ending(s, ns)) end
  redis.call('HSET', hash, server, string.format('%.0f', total))
  if seen == '0' then redis.call('PEXPIRE', hash, life) end
  return NEW
end

may_use(KEYS[1], {'GET', 'SET'})
may_use(KEYS[2], {'HGET', 'HSET', 'PEXPIRE'})
local replies, at = {}, 1
for i = 1, #KEYS, 2 do
  replies[#replies + 1] = merge(KEYS[i], KEYS[i + 1], at)
  at = at + 31 + sizes[string.byte(ARGV[2], at)]
end
return table.concat(replies)
