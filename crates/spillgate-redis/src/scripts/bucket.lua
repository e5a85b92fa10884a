-- Shared by decide.lua: token buckets and queues. The state is TAT, when all debt is paid, and its T.

-- The binary digits of a span in nanoseconds, lowest first. A whole second is an even number of them.
local function digits(s, ns)
  local found = {}
  while s > 0 or ns > 0 do
    found[#found + 1] = ns % 2
    s, ns = math.floor(s / 2), math.floor(ns / 2) + s % 2 * 500000000
  end
  return found
end

-- floor(x * (k * c + m) / c) and what is left over, for x in binary digits, m < c: long multiplication and
-- division at once. The result is at most `top`.
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

-- ceil(debt * T' / T), at most `top`.
local function converted(debt_s, debt_ns, new_s, new_ns, old_s, old_ns, top_s, top_ns)
  if old_s == 0 and old_ns <= 1 then old_ns = 1 end
  local k_s, k_ns, m_s, m_ns = scaled(digits(new_s, new_ns), 0, 0, 0, 1, old_s, old_ns, new_s, new_ns)
  local s, ns, left_s, left_ns =
    scaled(digits(debt_s, debt_ns), k_s, k_ns, m_s, m_ns, old_s, old_ns, top_s, top_ns)
  if left_s > 0 or left_ns > 0 then s, ns = plus(s, ns, 0, 1) end
  return least(s, ns, top_s, top_ns)
end

local bucket = {}

function bucket.hit(hit, at)
  hit.cost_s, hit.cost_ns, hit.room_s, hit.room_ns, hit.due_s, hit.due_ns, hit.top_s, hit.top_ns,
    hit.t_s, hit.t_ns, hit.mark_s, hit.mark_ns, hit.marked, at =
    struct.unpack('>I5I4I5I4I5I4I5I4I5I4I5I4B', ARGV[2], at)
  return at
end

function bucket.read(b, raw)
  b.tat_s, b.tat_ns, b.t_s, b.t_ns = struct.unpack('>I5I4I5I4', raw)
  return 18
end

-- debt = max(TAT - now, 0) in nanoseconds of the hit's T, at most 2*B*T.
local function debt(b, hit)
  if b.none then return 0, 0 end
  local s, ns = minus(b.tat_s, b.tat_ns, now_s, now_ns)
  if (b.t_s ~= hit.t_s or b.t_ns ~= hit.t_ns) and (s > 0 or ns > 0) then
    return converted(s, ns, hit.t_s, hit.t_ns, b.t_s, b.t_ns, hit.top_s, hit.top_ns)
  end
  return least(s, ns, hit.top_s, hit.top_ns)
end

local function owe(b, hit, s, ns)
  b.none = s == 0 and ns == 0
  b.tat_s, b.tat_ns = plus(now_s, now_ns, s, ns)
  b.t_s, b.t_ns = hit.t_s, hit.t_ns
end

function bucket.adopt(b, hit)
  owe(b, hit, debt(b, hit))
end

-- allow <=> debt <= min(B*T - cost*T, longest wait)
function bucket.fits(b, hit)
  local s, ns = debt(b, hit)
  return not less(hit.room_s, hit.room_ns, s, ns)
end

function bucket.charge(b, hit)
  local s, ns = debt(b, hit)
  owe(b, hit, plus(s, ns, hit.cost_s, hit.cost_ns))
end

-- debt' = max(debt, min(debt + due, 2*B*T))
function bucket.force(b, hit)
  local s, ns = debt(b, hit)
  local more_s, more_ns = plus(s, ns, hit.due_s, hit.due_ns)
  more_s, more_ns = least(more_s, more_ns, hit.top_s, hit.top_ns)
  owe(b, hit, most(s, ns, more_s, more_ns))
end

-- A place in a queue is given back only while it is the last.
function bucket.refund(b, hit)
  if b.none then return end
  local last = b.tat_s == hit.mark_s and b.tat_ns == hit.mark_ns
  local s, ns = debt(b, hit)
  if hit.marked == 0 or last then s, ns = minus(s, ns, hit.cost_s, hit.cost_ns) end
  owe(b, hit, s, ns)
end

function bucket.ends(b)
  return b.tat_s, b.tat_ns
end

function bucket.bytes(b)
  return struct.pack('>I5I4I5I4', b.tat_s, b.tat_ns, b.t_s, b.t_ns)
end
