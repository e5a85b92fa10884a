-- The general script. It decides every request, with several hits and all operations. A hit is one operation on one
-- limit. Either all takes of a request are charged, or none is charged. The script takes the same steps in the same
-- order as the function `decide` in the kernel (the pure decision code in crates/spillgate-core).
--
--     KEYS     the key of each state, once
--     ARGV[1]  the time of the decision; '' means the current time of Redis
--     ARGV[2]  for each hit: first the fields that every hit has, then the fields that `read_quota` of the hit's
--              algorithm reads (command/args.rs writes both)
--     ARGV[3]  optional: the latest time. After this time the script does nothing and returns an empty reply
--     RETURNS  the time of the decision; one byte, 1 if the request is allowed, otherwise 0; then, for each state, its
--              length and its bytes as they were before the request
local ENFORCE, QUOTA = 0, 2

-- Each loader returns the functions of one algorithm. The script calls only the loaders that the request needs.
local loaders, loaded = {load_bucket, load_window, load_counter, load_log, load_leases, load_log}, {}
local forms = {[4] = list_form, [6] = zset_form}

local function read_state(key, algorithm, quota)
  local state = {
    key = key, algorithm = algorithm, hits = {}, body = false, raw = false, until_s = 0, until_ns = 0,
    span_s = false, span_ns = false, penalty_changed = false,
  }
  if algorithm.open then algorithm.open(state) else open_string(state, algorithm, quota) end
  return state
end

-- Returns the part of the state that the kernel needs, as it was before the request.
local function show(state)
  if state.raw then return state.raw end
  local shut_out = state.until_s > 0 or state.until_ns > 0
  local penalty = shut_out and struct.pack('>I5I4', state.until_s, state.until_ns) or ''
  return state.algorithm.show(state.body, state) .. penalty
end

local function read_hits()
  local hits, states, at = {}, {}, 1
  while at <= #ARGV[2] do
    local number, index, op, binding, never, charged, idle, penalty_s, penalty_ns, next =
      struct.unpack('>BBBBBBBI5I4', ARGV[2], at)
    local algorithm = loaded[number] or loaders[number](forms[number] and forms[number]())
    loaded[number] = algorithm
    local quota
    quota, at = algorithm.read_quota(next)
    local state = states[index + 1] or read_state(KEYS[index + 1], algorithm, quota)
    states[index + 1] = state
    local hit = {
      op = op, binding = binding, never = never == 1, charged = charged == 1, idle = idle == 1, refused = false,
      punishes = penalty_s > 0 or penalty_ns > 0, penalty_s = penalty_s, penalty_ns = penalty_ns,
      algorithm = algorithm, quota = quota, state = state,
    }
    hits[#hits + 1], state.hits[#state.hits + 1] = hit, hit
  end
  return hits, states
end

local function is_shut_out(hit)
  return hit.punishes and less(now_s, now_ns, hit.state.until_s, hit.state.until_ns)
end

-- Corrects a state if the clock was set back. Times of the state that are then too far in the future are removed or
-- cut. The correction is stored even if the request is refused. A penalty is cut only if it ends after now + its length
-- + 1 s. The extra 1 s is for late requests: the time of a late request can be one second before the time at which the
-- penalty started.
local function adopt(hit)
  if hit.idle then return end
  local state = hit.state
  hit.algorithm.adopt(state.body, hit.quota)
  if not state.span_s then return end
  local s, ns = plus(now_s, now_ns, state.span_s, state.span_ns)
  if less(s + 1, ns, state.until_s, state.until_ns) then
    state.until_s, state.until_ns, state.penalty_changed = s, ns, true
  end
end

-- Starts the penalty of the quota. If the current penalty ends later, it does not change.
local function punish(hit)
  local state, s, ns = hit.state, plus(now_s, now_ns, hit.penalty_s, hit.penalty_ns)
  if less(state.until_s, state.until_ns, s, ns) then
    state.until_s, state.until_ns, state.penalty_changed = s, ns, true
    state.span_s, state.span_ns = hit.penalty_s, hit.penalty_ns
  end
end

local function refuses(hit)
  if hit.never then return true end
  local needs_lease = hit.op == RENEW or hit.op == SETTLE_LESS
  if needs_lease and hit.algorithm.is_alive then return not hit.algorithm.is_alive(hit.state.body, hit.quota) end
  if hit.op ~= TAKE and hit.op ~= PEEK and hit.op ~= TAKE_NOTHING then return false end
  return is_shut_out(hit) or not (hit.idle or hit.algorithm.fits(hit.state.body, hit.quota))
end

-- Returns whether the request is allowed. The request is refused in two cases: an enforcing hit is refused, or the
-- request has quota-mode hits and all of them are refused.
local function verdict(hits)
  local quota_refuses, quota_passes = false, false
  for _, hit in ipairs(hits) do
    if hit.binding == ENFORCE and hit.refused then return false end
    if hit.binding == QUOTA then
      if hit.refused then quota_refuses = true else quota_passes = true end
    end
  end
  return quota_passes or not quota_refuses
end

local function take_or_punish(hit, allowed)
  local state = hit.state
  if not hit.refused then
    if allowed and hit.op == TAKE then hit.algorithm.charge(state.body, hit.quota) end
    return
  end
  if hit.idle then return end
  if hit.charged and hit.op == TAKE then hit.algorithm.force(state.body, hit.quota) end
  if hit.punishes and (hit.charged or not is_shut_out(hit)) then punish(hit) end
end

-- A settlement takes effect only if the whole request is allowed. It forces units or refunds units.
local function forces(hit, allowed)
  return not hit.never and not hit.idle and (hit.op == FORCE or hit.op == SETTLE_MORE and allowed)
end

local function refund_renew_or_reset(hit, allowed)
  local state = hit.state
  if not hit.idle and (hit.op == REFUND or hit.op == SETTLE_LESS and allowed) then
    hit.algorithm.refund(state.body, hit.quota)
  elseif hit.op == RENEW and allowed and not hit.refused then
    hit.algorithm.renew(state.body, hit.quota)
  elseif hit.op == RESET then
    state.body.none, state.until_s, state.until_ns, state.span_s = true, 0, 0, false
  end
end

-- Writes a state that is a string, if it has changed.
local function write_string(state)
  local value, s, ns = after(state, state.hits[1].quota)
  if value == state.raw then return end
  if value == '' then redis.call('DEL', state.key) else redis.call('SET', state.key, value, ending(s, ns)) end
end

if ARGV[3] then
  local s, ns = struct.unpack('>I5I4', ARGV[3])
  if less(s, ns, now_s, now_ns) then return '' end
end
local hits, states = read_hits()
local reply = struct.pack('>I5I4', now_s, now_ns)
for _, state in ipairs(states) do may_use(state.key, state.algorithm.commands) end
for _, hit in ipairs(hits) do adopt(hit) end
for _, hit in ipairs(hits) do hit.refused = refuses(hit) end
local allowed = verdict(hits)
reply = reply .. (allowed and '\1' or '\0')
for _, state in ipairs(states) do
  local before = show(state)
  reply = reply .. struct.pack('>I4', #before) .. before
end
for _, hit in ipairs(hits) do
  if hit.op == TAKE or hit.op == TAKE_NOTHING then take_or_punish(hit, allowed) end
end
for _, hit in ipairs(hits) do
  if forces(hit, allowed) then hit.algorithm.force(hit.state.body, hit.quota) end
end
for _, hit in ipairs(hits) do refund_renew_or_reset(hit, allowed) end
for _, state in ipairs(states) do (state.algorithm.write or write_string)(state) end
return reply
