-- Any request: several hits, all operations, all or nothing. The same steps in the same order as `decide` in the
-- kernel (crates/spillgate-core/src/request.rs).
-- KEYS     each state once
-- ARGV[2]  hit after hit: what all have, then what its algorithm reads with `ask`
-- RETURNS  the time of the decision; 1 if the request is allowed, else 0; each state as it was before, with its length
-- TIME     '' for the server's own
local TAKE, LOOK, FORCE, REFUND, RENEW, RESET = 1, 2, 3, 4, 5, 6
local ENFORCE, QUOTA = 0, 2

-- Only what a request needs is set up.
local loaders, loaded = {load_bucket, load_window, load_counter}, {}

-- A state is its body, as its algorithm reads it, and then until when its key is shut out, if ever.
local function read_state(key, algorithm, quota)
  local raw = redis.call('GET', key) or ''
  local body, length = algorithm.read(#raw > 9 and raw or '', quota)
  local until_s, until_ns = 0, 0
  if #raw > length then until_s, until_ns = struct.unpack('>I5I4', raw, length + 1) end
  return {
    key = key, raw = raw, algorithm = algorithm, quota = quota, body = body, until_s = until_s, until_ns = until_ns,
  }
end

local function read_hits()
  local hits, states, at = {}, {}, 1
  while at <= #ARGV[2] do
    local number, index, op, binding, never, charged, idle, penalty_s, penalty_ns, next =
      struct.unpack('>BBBBBBBI5I4', ARGV[2], at)
    local algorithm = loaded[number] or loaders[number]()
    loaded[number] = algorithm
    local quota
    quota, at = algorithm.ask(next)
    local state = states[index + 1] or read_state(KEYS[index + 1], algorithm, quota)
    states[index + 1] = state
    hits[#hits + 1] = {
      op = op, binding = binding, never = never == 1, charged = charged == 1, idle = idle == 1, refused = false,
      punishes = penalty_s > 0 or penalty_ns > 0, penalty_s = penalty_s, penalty_ns = penalty_ns,
      algorithm = algorithm, quota = quota, state = state,
    }
  end
  return hits, states
end

local function is_shut_out(hit)
  return hit.punishes and less(now_s, now_ns, hit.state.until_s, hit.state.until_ns)
end

-- What a clock that was set back has left is cut down, and debt converted to a new T: kept whatever the verdict.
local function adopt(hit)
  if hit.idle then return end
  local state = hit.state
  hit.algorithm.adopt(state.body, hit.quota)
  if hit.punishes then
    local s, ns = plus(now_s, now_ns, hit.penalty_s, hit.penalty_ns)
    state.until_s, state.until_ns = least(state.until_s, state.until_ns, s, ns)
  end
end

local function refuses(hit)
  if hit.never then return true end
  if hit.op == RENEW then return not hit.algorithm.is_alive(hit.state.body, hit.quota) end
  if hit.op ~= TAKE and hit.op ~= LOOK then return false end
  return is_shut_out(hit) or not (hit.idle or hit.algorithm.fits(hit.state.body, hit.quota))
end

-- Refused if an enforcing hit refuses, or if there are quota hits and all of them refuse.
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
    if allowed then hit.algorithm.charge(state.body, hit.quota) end
    return
  end
  if hit.idle then return end
  if hit.charged then hit.algorithm.force(state.body, hit.quota) end
  if hit.punishes and (hit.charged or not is_shut_out(hit)) then
    local s, ns = plus(now_s, now_ns, hit.penalty_s, hit.penalty_ns)
    state.until_s, state.until_ns = most(state.until_s, state.until_ns, s, ns)
  end
end

local function give_back(hit, allowed)
  local state = hit.state
  if hit.op == REFUND and not hit.idle then
    hit.algorithm.refund(state.body, hit.quota)
  elseif hit.op == RENEW and allowed and not hit.refused then
    hit.algorithm.renew(state.body, hit.quota)
  elseif hit.op == RESET then
    state.body.none, state.until_s, state.until_ns = true, 0, 0
  end
end

-- The state ends when neither its body nor its penalty counts any more.
local function write(state)
  local value, s, ns = '', state.until_s, state.until_ns
  local shut_out = s > 0 or ns > 0
  if not state.body.none then
    value = state.algorithm.bytes(state.body)
    s, ns = most(s, ns, state.algorithm.ends(state.body, state.quota))
  end
  if shut_out then value = value .. struct.pack('>I5I4', state.until_s, state.until_ns) end
  if value == state.raw then return end
  if value == '' then redis.call('DEL', state.key) else redis.call('SET', state.key, value, ending(s, ns)) end
end

local hits, states = read_hits()
local answer = struct.pack('>I5I4', now_s, now_ns)
for _, hit in ipairs(hits) do adopt(hit) end
for _, hit in ipairs(hits) do hit.refused = refuses(hit) end
local allowed = verdict(hits)
answer = answer .. (allowed and '\1' or '\0')
for _, state in ipairs(states) do answer = answer .. struct.pack('>I4', #state.raw) .. state.raw end
for _, hit in ipairs(hits) do
  if hit.op == TAKE then take_or_punish(hit, allowed) end
end
for _, hit in ipairs(hits) do
  if hit.op == FORCE and not hit.never and not hit.idle then hit.algorithm.force(hit.state.body, hit.quota) end
end
for _, hit in ipairs(hits) do give_back(hit, allowed) end
for _, state in ipairs(states) do write(state) end
return answer
