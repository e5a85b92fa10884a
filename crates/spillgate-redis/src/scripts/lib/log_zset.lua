-- A log as a sorted set, which people and other tools can read. Each member is one unit. The score of a unit is the time
-- when it was taken, in microseconds. The name of the member is the exact time, and then a number that distinguishes
-- the units of that time. Redis orders members of equal score by name, so units are always in the order of their times.
-- The end of a penalty is stored in one more member, which comes before all units. lib/logs.lua says what each function
-- does.
local function zset_form()
  local function size(key)
    return redis.call('ZCARD', key)
  end

  local function member(key, position)
    return redis.call('ZRANGE', key, position, position)[1]
  end

  local function parse(member, from)
    return string.sub(member, from, from + 9) + 0, string.sub(member, from + 11, from + 19) + 0
  end

  local function until_when(key)
    local first = member(key, 0)
    if string.sub(first, 1, 6) ~= 'until ' then return end
    local s, ns = parse(first, 7)
    if #first == 26 then return s, ns end
    return s, ns, parse(first, 32)
  end

  local function time(key, position)
    return parse(member(key, position), 1)
  end

  local function all(key, from)
    local found = redis.call('ZRANGE', key, from, -1)
    for i = 1, #found do found[i] = log_element(parse(found[i], 1)) end
    return found
  end

  -- A Lua call accepts only some thousand arguments. A large number of units is therefore added in several calls.
  local function push(key, s, ns, units)
    local at, score = string.format('%010d.%09d', s, ns), string.format('%.0f', s * 1000000 + math.floor(ns / 1000))
    local last, number = member(key, -1), 0
    if last and string.sub(last, 1, 20) == at then number = string.sub(last, 22) + 1 end
    while units > 0 do
      local some, pairs = math.min(units, 2000), {}
      for i = 0, some - 1 do
        pairs[2 * i + 1], pairs[2 * i + 2] = score, string.format('%s-%010d', at, number + i)
      end
      redis.call('ZADD', key, unpack(pairs))
      units, number = units - some, number + some
    end
  end

  local function trim(key, from)
    redis.call('ZREMRANGEBYRANK', key, 0, from - 1)
  end

  local function span(key, head, size, s, ns)
    local function older(count)
      local at_s, at_ns = time(key, head + count - 1)
      return at_s < s or (at_s == s and at_ns < ns)
    end
    local function not_newer(count)
      local at_s, at_ns = time(key, head + count - 1)
      return at_s < s or (at_s == s and at_ns <= ns)
    end
    local first, after = log_search(size, older), log_search(size, not_newer)
    if first < after then return head + first, head + after - 1 end
  end

  local function remove(key, head, size, s, ns, units)
    local first, last = span(key, head, size, s, ns)
    if not first or units == 0 then return 0 end
    return redis.call('ZREMRANGEBYRANK', key, math.max(first, last - units + 1), last)
  end

  local function shut_out(key, head, s, ns, span_s, span_ns)
    if head == 1 then redis.call('ZREMRANGEBYRANK', key, 0, 0) end
    local span = span_s and string.format(' for %010d.%09d', span_s, span_ns) or ''
    redis.call('ZADD', key, '-inf', string.format('until %010d.%09d', s, ns) .. span)
  end

  return {
    size = size, until_when = until_when, time = time, all = all, push = push, trim = trim, remove = remove,
    span = span, shut_out = shut_out,
    commands = {'ZRANGE', 'ZADD', 'ZREMRANGEBYRANK', 'DEL', 'PEXPIREAT'},
  }
end

