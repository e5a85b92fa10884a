-- Part of decide.lua: leases of a concurrency limit, which allows N permits at the same time. The state is a Redis hash
-- with three kinds of fields:
--
--     an id (nine bytes)  one lease: its life (how long it lasts without a renewal), its end, and its permits
--     'about'             totals of all leases, so that most requests need not read all leases
--     'until'             the end and the length of the penalty
local function load_leases()
  local function read_quota(at)
    local cost, max_used, life_s, life_ns, mark_s, mark_ns, marked, next = struct.unpack('>I7I7I5I4I5I4B', ARGV[2], at)
    return {
      cost = cost, max_used = max_used, life_s = life_s, life_ns = life_ns,
      id = marked == 1 and struct.pack('>I5I4', mark_s, mark_ns),
    }, next
  end

  -- Reads the totals of all leases. `last` is the newest id, and `permits` is the number of permits of all leases. No
  -- lease ends before `first`. Each lease ends at `base` plus its own life, or earlier. The last lease ends at `final`.
  -- After `adopt`, `held` is the number of permits of the leases that have not ended.
  local function open(state)
    local found = redis.call('HMGET', state.key, 'about', 'until')
    local b = {
      key = state.key, none = true, changed = false, adopted = false, permits = 0, held = 0, last_s = 0, last_ns = 0,
      first_s = 0, first_ns = 0, base_s = 0, base_ns = 0, final_s = 0, final_ns = 0,
    }
    if found[1] then
      b.none = false
      b.permits, b.last_s, b.last_ns, b.first_s, b.first_ns, b.base_s, b.base_ns, b.final_s, b.final_ns =
        struct.unpack('>I3I5I4I5I4I5I4I5I4', found[1])
      b.held = b.permits
    end
    if found[2] then state.until_s, state.until_ns = struct.unpack('>I5I4', found[2]) end
    if found[2] and #found[2] == 18 then state.span_s, state.span_ns = struct.unpack('>I5I4', found[2], 10) end
    state.body = b
  end

  local function term(value)
    local life_s, life_ns, end_s, end_ns, permits = struct.unpack('>I5I4I5I4I3', value)
    return life_s, life_ns, end_s, end_ns, permits
  end

  local function store(b, id, life_s, life_ns, end_s, end_ns, permits)
    redis.call('HSET', b.key, id, struct.pack('>I5I4I5I4I3', life_s, life_ns, end_s, end_ns, permits))
    b.changed = true
  end

  -- Adds a lease to the totals, even if the lease has ended.
  local function count(b, life_s, life_ns, end_s, end_ns, permits)
    if b.permits == 0 or less(end_s, end_ns, b.first_s, b.first_ns) then b.first_s, b.first_ns = end_s, end_ns end
    b.base_s, b.base_ns = most(b.base_s, b.base_ns, minus(end_s, end_ns, life_s, life_ns))
    b.final_s, b.final_ns = most(b.final_s, b.final_ns, end_s, end_ns)
    b.permits = b.permits + permits
    if less(now_s, now_ns, end_s, end_ns) then b.held = b.held + permits end
  end

  -- Reads all leases and computes the totals again. If the clock was set back, a lease can end later than one life from
  -- now. The end of such a lease is cut to one life from now. If `sweep` is set, leases that have ended are removed.
  local function recount(b, sweep)
    b.permits, b.held, b.first_s, b.first_ns, b.base_s, b.base_ns, b.final_s, b.final_ns = 0, 0, 0, 0, 0, 0, 0, 0
    local all = redis.call('HGETALL', b.key)
    b.changed = true
    for i = 1, #all, 2 do
      if #all[i] == 9 then
        local life_s, life_ns, end_s, end_ns, permits = term(all[i + 1])
        local top_s, top_ns = plus(now_s, now_ns, life_s, life_ns)
        if sweep and not less(now_s, now_ns, end_s, end_ns) then
          redis.call('HDEL', b.key, all[i])
        else
          if less(top_s, top_ns, end_s, end_ns) then
            end_s, end_ns = top_s, top_ns
            store(b, all[i], life_s, life_ns, end_s, end_ns, permits)
          end
          count(b, life_s, life_ns, end_s, end_ns, permits)
        end
      end
    end
  end

  local function adopt(b)
    if b.none then return end
    b.adopted = true
    local ended = b.permits > 0 and not less(now_s, now_ns, b.first_s, b.first_ns)
    if ended or less(now_s, now_ns, b.base_s, b.base_ns) then
      recount(b, false)
    end
    -- An id is a time, and two leases must not have the same id. So the state is kept until the newest id is in the past.
    b.none = b.held == 0 and less(b.last_s, b.last_ns, now_s, now_ns)
  end

  -- A take fits if held <= N - cost.
  local function fits(b, quota)
    return b.held <= quota.max_used
  end

  -- Adds a lease. Its id is the greater of two numbers: the current time in nanoseconds, and the newest id + 1.
  local function charge(b, quota)
    if b.none then
      redis.call('DEL', b.key)
      b.none, b.last_s, b.last_ns = false, 0, 0
      recount(b, false)
    elseif b.permits > b.held then
      recount(b, true)
    end
    local next_s, next_ns = plus(b.last_s, b.last_ns, 0, 1)
    b.last_s, b.last_ns = most(now_s, now_ns, next_s, next_ns)
    local end_s, end_ns = plus(now_s, now_ns, quota.life_s, quota.life_ns)
    store(b, struct.pack('>I5I4', b.last_s, b.last_ns), quota.life_s, quota.life_ns, end_s, end_ns, quota.cost)
    count(b, quota.life_s, quota.life_ns, end_s, end_ns, quota.cost)
  end

  local function refund(b, quota)
    if b.none then return end
    local found = quota.id and redis.call('HGET', b.key, quota.id)
    if found then
      local life_s, life_ns, end_s, end_ns, permits = term(found)
      local released = math.min(permits, quota.cost)
      b.permits = b.permits - released
      if less(now_s, now_ns, end_s, end_ns) then b.held = b.held - released end
      if released < permits then
        store(b, quota.id, life_s, life_ns, end_s, end_ns, permits - released)
      else
        redis.call('HDEL', b.key, quota.id)
        b.changed = true
        if end_s == b.final_s and end_ns == b.final_ns then recount(b, false) end
      end
    end
    b.none = b.permits == 0 and less(b.last_s, b.last_ns, now_s, now_ns)
  end

  local function is_alive(b, quota)
    local found = not b.none and redis.call('HGET', b.key, quota.id)
    if not found then return false end
    local _, _, end_s, end_ns = term(found)
    return less(now_s, now_ns, end_s, end_ns)
  end

  local function renew(b, quota)
    local found = not b.none and redis.call('HGET', b.key, quota.id)
    if not found then return end
    local life_s, life_ns, end_s, end_ns, permits = term(found)
    life_s, life_ns = most(life_s, life_ns, quota.life_s, quota.life_ns)
    end_s, end_ns = most(end_s, end_ns, plus(now_s, now_ns, quota.life_s, quota.life_ns))
    store(b, quota.id, life_s, life_ns, end_s, end_ns, permits)
    b.base_s, b.base_ns = most(b.base_s, b.base_ns, minus(end_s, end_ns, life_s, life_ns))
    b.final_s, b.final_ns = most(b.final_s, b.final_ns, end_s, end_ns)
  end

  -- Returns the part of the state that the kernel (the pure decision code in crates/spillgate-core) needs. The newest
  -- id comes first. Then come the leases that no hit (one operation of the request) names, written as one lease: the
  -- sum of their permits, and the latest of their ends. Then comes each lease that a hit names.
  local function show(b, state)
    if b.none then return '' end
    local names, known, held, last = {}, {}, b.held, false
    for _, hit in ipairs(state.hits) do
      local id = hit.quota.id
      local found = id and not known[id] and redis.call('HGET', b.key, id)
      if found then
        local _, _, end_s, end_ns, permits = term(found)
        known[id] = true
        names[#names + 1] = id .. found
        if not b.adopted or less(now_s, now_ns, end_s, end_ns) then held = held - permits end
        last = last or (end_s == b.final_s and end_ns == b.final_ns)
      end
    end
    local final_s, final_ns = b.final_s, b.final_ns
    if last then
      final_s, final_ns = 0, 0
      local all = redis.call('HGETALL', b.key)
      for i = 1, #all, 2 do
        if #all[i] == 9 and not known[all[i]] then
          local _, _, end_s, end_ns = term(all[i + 1])
          final_s, final_ns = most(final_s, final_ns, end_s, end_ns)
        end
      end
    end
    return struct.pack('>I5I4I3I5I4', b.last_s, b.last_ns, held, final_s, final_ns) .. table.concat(names)
  end

  -- Writes the state. Its key expires when the last lease and the penalty have ended and the newest id is in the past.
  local function write(state)
    local b, s, ns = state.body, state.until_s, state.until_ns
    local shut_out = s > 0 or ns > 0
    if b.none then
      redis.call('DEL', b.key)
    elseif not b.changed and not state.penalty_changed then
      return
    end
    if shut_out then
      local span = state.span_s and struct.pack('>I5I4', state.span_s, state.span_ns) or ''
      redis.call('HSET', b.key, 'until', struct.pack('>I5I4', s, ns) .. span)
    end
    if not b.none then
      if b.changed then
        redis.call('HSET', b.key, 'about', struct.pack('>I3I5I4I5I4I5I4I5I4', b.permits, b.last_s, b.last_ns,
          b.first_s, b.first_ns, b.base_s, b.base_ns, b.final_s, b.final_ns))
      end
      s, ns = most(s, ns, b.final_s, b.final_ns)
      s, ns = most(s, ns, plus(b.last_s, b.last_ns, 0, 1))
    end
    if not b.none or shut_out then end_key(b.key, s, ns) end
  end

  return {
    read_quota = read_quota, open = open, adopt = adopt, fits = fits, charge = charge, refund = refund,
    is_alive = is_alive, renew = renew, show = show, write = write,
    commands = {'HGET', 'HGETALL', 'HSET', 'HDEL', 'DEL', 'PEXPIREAT'},
  }
end
