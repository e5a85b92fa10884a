-- A log as a Redis list. Each element is one unit: the time when it was taken, in eight bytes. The first element can be
-- a penalty instead. It has 18 bytes: the end of the penalty, and its length. An older version of the scripts wrote
-- only the end, in nine bytes. lib/logs.lua says what each function does.
local function list_form()
  local function size(key)
    return redis.call('LLEN', key)
  end

  local function until_when(key)
    local first = redis.call('LINDEX', key, 0)
    if #first == 8 then return end
    local s, ns = struct.unpack('>I5I4', first)
    if #first == 9 then return s, ns end
    return s, ns, struct.unpack('>I5I4', first, 10)
  end

  local function time(key, position)
    return log_time(redis.call('LINDEX', key, position))
  end

  local function all(key, from)
    return redis.call('LRANGE', key, from, -1)
  end

  -- A Lua call accepts only some thousand arguments. A large number of units is therefore added in several calls.
  local function push(key, s, ns, units)
    local element = log_element(s, ns)
    if units == 1 then return redis.call('RPUSH', key, element) end
    local elements = {}
    for i = 1, math.min(units, 4000) do elements[i] = element end
    for _ = 1, math.floor(units / 4000) do redis.call('RPUSH', key, unpack(elements)) end
    local left = units % 4000
    if left > 0 then redis.call('RPUSH', key, unpack(elements, 1, left)) end
  end

  local function trim(key, from)
    redis.call('LTRIM', key, from, -1)
  end

  local function remove(key, head, size, s, ns, units)
    return redis.call('LREM', key, -units, log_element(s, ns))
  end

  local function span(key, head, size, s, ns)
    local element = log_element(s, ns)
    local first = redis.call('LPOS', key, element)
    if first then return first, redis.call('LPOS', key, element, 'RANK', -1) end
  end

  local function shut_out(key, head, s, ns, span_s, span_ns)
    if head == 1 then redis.call('LPOP', key) end
    local span = span_s and struct.pack('>I5I4', span_s, span_ns) or ''
    redis.call('LPUSH', key, struct.pack('>I5I4', s, ns) .. span)
  end

  return {
    size = size, until_when = until_when, time = time, all = all, push = push, trim = trim, remove = remove,
    span = span, shut_out = shut_out,
    commands = {'LINDEX', 'LRANGE', 'LPOS', 'RPUSH', 'LPUSH', 'LPOP', 'LREM', 'LTRIM', 'DEL', 'PEXPIREAT'},
  }
end

