-- Part of decide.lua: sliding window logs with a limit L and a window W. A log has one element for each unit. It is a list
-- or a sorted set. `form` is a table of functions that read and write one of these two forms (lib/logs.lua). A request
-- consists of hits: each hit is one operation, such as a take or a refund, with one quota.
local function load_log(form)
  local function read_quota(at)
    local cost, max_used, due, top, window_s, window_ns, at_s, at_ns, marked, next =
      struct.unpack('>I7I7I7I7I5I4I5I4B', ARGV[2], at)
    return {
      cost = cost, max_used = max_used, due = due, top = top, window_s = window_s, window_ns = window_ns,
      at_s = at_s, at_ns = at_ns, marked = marked == 1,
    }, next
  end

  local function open(state)
    local size, head, s, ns = form.size(state.key), 0, nil, nil
    local span_s, span_ns
    if size > 0 then s, ns, span_s, span_ns = form.until_when(state.key) end
    if s then
      head = 1
      state.until_s, state.until_ns, state.span_s, state.span_ns = s, ns, span_s, span_ns
    end
    state.body = {key = state.key, none = size == head, head = head, size = size - head, changed = false}
  end

  local function newest(log)
    return form.time(log.key, -1)
  end

  -- Returns the time that the request gets: now, or the time of the newest unit if that time is later than now.
  local function effective(log)
    if log.none then return now_s, now_ns end
    return most(now_s, now_ns, newest(log))
  end

  local function expired(log, quota)
    return log_expired(form, log.key, log.head, log.size, quota.window_s, quota.window_ns, effective(log))
  end

  -- Removes the oldest units. If a penalty is stored before them, it is removed too, and `write` stores it again.
  local function drop(log, units)
    if units <= 0 then return end
    log.size = math.max(log.size - units, 0)
    form.trim(log.key, log.head + units)
    log.head, log.none, log.changed = 0, log.size == 0, true
  end

  -- Removes all units if the newest unit is later than now + W. Such a unit means that the clock was set back.
  local function adopt(log, quota)
    if log.none then return end
    local s, ns = plus(now_s, now_ns, quota.window_s, quota.window_ns)
    if less(s, ns, newest(log)) then drop(log, log.size) end
  end

  -- A take fits if the number of units in the window is at most L - cost.
  local function fits(log, quota)
    return log.size - expired(log, quota) <= quota.max_used
  end

  local function add(log, quota, units)
    local s, ns = effective(log)
    drop(log, expired(log, quota))
    form.push(log.key, s, ns, units)
    log.size, log.none, log.changed = log.size + units, false, true
  end

  local function charge(log, quota)
    add(log, quota, quota.cost)
  end

  -- Adds min(due, top) units even if they do not fit. Here top = L + 1, and n is the number of units that were in the
  -- window before the call. If the log then has more than max(top, n) units, the oldest units are removed until it has
  -- max(top, n).
  local function force(log, quota)
    local most = math.max(quota.top, log.size - expired(log, quota))
    add(log, quota, math.min(quota.due, quota.top))
    drop(log, log.size - most)
  end

  -- A receipt (which the caller got for the take) names the time of the take. With a receipt the refund removes units
  -- of that time. Without a receipt it removes the oldest units in the window.
  local function refund(log, quota)
    if log.none then return end
    if not quota.marked then return drop(log, expired(log, quota) + quota.cost) end
    local removed = form.remove(log.key, log.head, log.size, quota.at_s, quota.at_ns, quota.cost)
    log.size = log.size - removed
    log.none, log.changed = log.size == 0, log.changed or removed > 0
  end

  -- Returns the ranks of the units that the kernel (the pure decision code in crates/spillgate-core) needs to decide
  -- the hit. Rank 1 is the oldest of the `count` units in the window. For a take, the kernel needs the unit that must
  -- expire before the take fits. Some limits charge a take also when they refuse it. The charge adds units to the log,
  -- so the caller has to wait longer. For such a limit, the kernel needs a second unit: the unit that must expire before
  -- the same take fits in the longer log. For a refund with a receipt, the kernel needs two units: the last unit before
  -- the time in the receipt, and the last unit of that time.
  local function ranks_of(log, hit, expired_units, count)
    local quota = hit.quota
    if hit.op == TAKE or hit.op == PEEK or hit.op == TAKE_NOTHING then
      local rank = count - quota.max_used
      return hit.charged and {rank, rank + quota.due} or {rank}
    end
    if (hit.op ~= REFUND and hit.op ~= SETTLE_LESS) or not quota.marked then return {} end
    local first, last = form.span(log.key, log.head, log.size, quota.at_s, quota.at_ns)
    if not first then return {} end
    return {first - log.head - expired_units, last - log.head - expired_units + 1}
  end

  -- Returns the part of the log that the kernel needs, as it was before the request. One hit needs only a few units.
  -- Several hits can need any unit, so the whole log is returned.
  local function show(log, state)
    if log.none then return '' end
    if #state.hits > 1 then return log_whole(form, log.key, log.head) end
    local hit = state.hits[1]
    local expired_units = expired(log, hit.quota)
    local count = log.size - expired_units
    return log_digest(form, log.key, log.head + expired_units, count, ranks_of(log, hit, expired_units, count))
  end

  local function write(state)
    local log, quota = state.body, state.hits[1].quota
    local s, ns = state.until_s, state.until_ns
    local shut_out = s > 0 or ns > 0
    if log.none and not shut_out then return redis.call('DEL', log.key) end
    if not log.changed and not state.penalty_changed then return end
    if shut_out then form.shut_out(log.key, log.head, s, ns, state.span_s, state.span_ns) end
    if not log.none then
      local newest_s, newest_ns = newest(log)
      s, ns = most(s, ns, plus(newest_s, newest_ns, quota.window_s, quota.window_ns))
    end
    end_key(log.key, s, ns)
  end

  return {
    read_quota = read_quota, open = open, adopt = adopt, fits = fits, charge = charge, force = force, refund = refund,
    show = show, write = write, commands = form.commands,
  }
end
