-- Part of decide.lua: token buckets and queues. A bucket stores its debt (the units that are taken and not yet refilled)
-- as time. B is the capacity of the bucket, and T is the interval in which the debt of one unit is paid. A state is TAT, T
-- and b. TAT is the time when all debt is paid. The debt is at most 2^b nanoseconds, unless the clock was set back.
--
-- A time or a span is two numbers here: seconds (_s) and nanoseconds (_ns).
local function load_bucket()
  -- Returns the binary digits of a span in nanoseconds, lowest first. A second is an even number of nanoseconds, so the
  -- lowest digit depends on `ns` only.
  local function digits(s, ns)
    local found = {}
    while s > 0 or ns > 0 do
      found[#found + 1] = ns % 2
      s, ns = math.floor(s / 2), math.floor(ns / 2) + s % 2 * 500000000
    end
    return found
  end

  -- Returns floor(x * (k * c + m) / c), at most `top`, and the remainder. x is given as binary digits, and m must be less
  -- than c. The loop does a long multiplication and a long division in one pass, because the product needs more bits
  -- than a Lua number has.
  local function scaled(x, k_s, k_ns, m_s, m_ns, c_s, c_ns, top_s, top_ns)
    local q_s, q_ns, r_s, r_ns = 0, 0, 0, 0
    for i = #x, 1, -1 do
      q_s, q_ns = plus(q_s, q_ns, q_s, q_ns)
      r_s, r_ns = plus(r_s, r_ns, r_s, r_ns)
      if x[i] == 1 then
        q_s, q_ns = plus(q_s, q_ns, k_s, k_ns)
        r_s, r_ns = plus(r_s, r_ns, m_s, m_ns)
      end
      while not less(r_s, r_ns, c_s, c_ns) do
        r_s, r_ns = minus(r_s, r_ns, c_s, c_ns)
        q_s, q_ns = plus(q_s, q_ns, 0, 1)
      end
      q_s, q_ns = least(q_s, q_ns, top_s, top_ns)
    end
    return q_s, q_ns, r_s, r_ns
  end

  -- Returns floor(debt * new / old), at most `top`, and the remainder. This result is exact for all inputs, although the
  -- product can have 126 bits.
  local function floored(debt_s, debt_ns, new_s, new_ns, old_s, old_ns, top_s, top_ns)
    if old_s == 0 and old_ns == 0 then old_ns = 1 end
    local k_s, k_ns, m_s, m_ns = scaled(digits(new_s, new_ns), 0, 0, 0, 1, old_s, old_ns, new_s, new_ns)
    return scaled(digits(debt_s, debt_ns), k_s, k_ns, m_s, m_ns, old_s, old_ns, top_s, top_ns)
  end

  -- Converts a debt that was counted in the old T to the new T. Returns ceil(debt * new / old), at most `top`.
  local function converted(debt_s, debt_ns, new_s, new_ns, old_s, old_ns, top_s, top_ns)
    local s, ns, left_s, left_ns = floored(debt_s, debt_ns, new_s, new_ns, old_s, old_ns, top_s, top_ns)
    if left_s > 0 or left_ns > 0 then s, ns = plus(s, ns, 0, 1) end
    return least(s, ns, top_s, top_ns)
  end

  local function read_quota(at)
    local cost_s, cost_ns, max_debt_s, max_debt_ns, due_s, due_ns, top_s, top_ns, t_s, t_ns, bits, mark_s, mark_ns,
      at_s, at_ns, queue, next =
      struct.unpack('>I5I4I5I4I5I4I5I4I5I4BI5I4I5I4B', ARGV[2], at)
    return {
      cost_s = cost_s, cost_ns = cost_ns, max_debt_s = max_debt_s, max_debt_ns = max_debt_ns,
      due_s = due_s, due_ns = due_ns, top_s = top_s, top_ns = top_ns, t_s = t_s, t_ns = t_ns, bits = bits,
      mark_s = mark_s, mark_ns = mark_ns, at_s = at_s, at_ns = at_ns, queue = queue == 1,
    }, next
  end

  -- Reads a state. b is the last byte of the value. An older version of this script wrote states without b.
  local function read(raw)
    if raw == '' then return {none = true, tat_s = 0, tat_ns = 0, t_s = 0, t_ns = 0}, 0 end
    local tat_s, tat_ns, t_s, t_ns = struct.unpack('>I5I4I5I4', raw)
    local bits = #raw ~= 18 and #raw ~= 27 and string.byte(raw, -1) or nil
    return {none = tat_s == 0 and tat_ns == 0, tat_s = tat_s, tat_ns = tat_ns, t_s = t_s, t_ns = t_ns, bits = bits}, 18
  end

  -- Returns the debt, max(TAT - now, 0), counted in the T of the state. A debt above 2^b means that the clock was set
  -- back, so it is cut to 2^b. The computation is exact: a double can store 2^b exactly, and also the largest multiple
  -- of 10^9 that is not above 2^b.
  local function debt(b)
    if b.none then return 0, 0 end
    local s, ns = minus(b.tat_s, b.tat_ns, now_s, now_ns)
    if not b.bits then return s, ns end
    local top = 2 ^ b.bits
    local top_ns = math.fmod(top, 1000000000)
    return least(s, ns, (top - top_ns) / 1000000000, top_ns)
  end

  -- Returns the debt, counted in the T of the quota, rounded up and at most 2*B*T. A take needs the result twice, so the
  -- result is stored until the debt changes.
  local function debt_under(b, quota)
    if b.under ~= quota then
      local s, ns = debt(b)
      if (b.t_s ~= quota.t_s or b.t_ns ~= quota.t_ns) and (s > 0 or ns > 0) then
        s, ns = converted(s, ns, quota.t_s, quota.t_ns, b.t_s, b.t_ns, quota.top_s, quota.top_ns)
      end
      b.under, b.under_s, b.under_ns = quota, s, ns
    end
    return b.under_s, b.under_ns
  end

  local function set(b, s, ns)
    b.under = nil
    b.none = s == 0 and ns == 0
    b.tat_s, b.tat_ns = plus(now_s, now_ns, s, ns)
  end

  local function owe(b, quota, s, ns)
    set(b, s, ns)
    b.t_s, b.t_ns, b.bits = quota.t_s, quota.t_ns, quota.bits
  end

  local function adopt(b)
    set(b, debt(b))
  end

  -- A take fits if debt <= max_debt, which is min(B*T - cost*T, longest wait).
  local function fits(b, quota)
    local s, ns = debt_under(b, quota)
    return not less(quota.max_debt_s, quota.max_debt_ns, s, ns)
  end

  local function charge(b, quota)
    local s, ns = debt_under(b, quota)
    owe(b, quota, plus(s, ns, quota.cost_s, quota.cost_ns))
  end

  -- Adds min(due, 2*B*T - debt) to the debt. `due` is the debt that a force or a charged refusal adds. If nothing can be
  -- added, the state does not change, and it keeps its T.
  local function force(b, quota)
    local s, ns = debt_under(b, quota)
    local more_s, more_ns = minus(quota.top_s, quota.top_ns, s, ns)
    more_s, more_ns = least(more_s, more_ns, quota.due_s, quota.due_ns)
    if more_s > 0 or more_ns > 0 then owe(b, quota, plus(s, ns, more_s, more_ns)) end
  end

  -- Returns how much of the debt until the mark time has not paid yet, counted in the T of the state and at most `top`. The
  -- mark is a time in the T of the quota of the take, and the debt was converted at some time since the take. If T became
  -- shorter, a conversion right after the take leaves the least, otherwise a conversion right now.
  local function not_paid_yet(b, quota, top_s, top_ns)
    local s, ns = minus(quota.mark_s, quota.mark_ns, now_s, now_ns)
    if b.t_s == quota.t_s and b.t_ns == quota.t_ns then return least(s, ns, top_s, top_ns) end
    local shorter = less(b.t_s, b.t_ns, quota.t_s, quota.t_ns)
    local most_s, most_ns = top_s, top_ns
    if shorter then
      s, ns = minus(quota.mark_s, quota.mark_ns, quota.at_s, quota.at_ns)
      most_s, most_ns = s, ns
    end
    s, ns = floored(s, ns, b.t_s, b.t_ns, quota.t_s, quota.t_ns, most_s, most_ns)
    if shorter then s, ns = minus(s, ns, minus(now_s, now_ns, quota.at_s, quota.at_ns)) end
    return least(s, ns, top_s, top_ns)
  end

  -- Subtracts cost * T from the debt, with the T of the state. Here quota.cost_s and quota.cost_ns encode units, not time.
  -- The mark is the TAT right after the take, which the receipt of the take contains. It is 0 without a receipt. Time has
  -- given back what was due before now, so at most what is not paid yet is subtracted. A queue refunds a take only if no other take
  -- has joined the queue after it. In this case TAT still equals the mark.
  local function refund(b, quota)
    if b.none then return end
    if quota.queue and (b.tat_s ~= quota.mark_s or b.tat_ns ~= quota.mark_ns) then return end
    local s, ns = debt(b)
    local most_s, most_ns = s, ns
    if quota.mark_s > 0 or quota.mark_ns > 0 then
      most_s, most_ns = not_paid_yet(b, quota, s, ns)
    end
    set(b, minus(s, ns, converted(quota.cost_s, quota.cost_ns, b.t_s, b.t_ns, 0, 1, most_s, most_ns)))
  end

  local function ends(b)
    return b.tat_s, b.tat_ns
  end

  local function bytes(b)
    return struct.pack('>I5I4I5I4', b.tat_s, b.tat_ns, b.t_s, b.t_ns)
  end

  local function last(b)
    return b.bits and string.char(b.bits)
  end

  local function nothing()
    return string.rep('\0', 18)
  end

  return {
    read_quota = read_quota, read = read, adopt = adopt, fits = fits, charge = charge, force = force, refund = refund,
    ends = ends, bytes = bytes, last = last, nothing = nothing, commands = {'SET', 'DEL'},
  }
end
