-- Any request: several hits, all operations, all or nothing. The same steps in the same order as `decide` in the
-- kernel (crates/spillgate-core/src/request.rs).
-- KEYS     each state once
-- ARGV[2]  hit after hit: what all have, then what its algorithm reads with `hit`
-- RETURNS  the time of the decision; 1 if the request is allowed, else 0; each state as it was before, with its length
-- TIME     '' for the server's own
local TAKE, LOOK, FORCE, REFUND, RENEW, RESET = 1, 2, 3, 4, 5, 6
local ENFORCE, QUOTA = 0, 2
local algorithms = {bucket, window, counter}

-- A state is its body, as its algorithm reads it, and then until when its key is shut out, if ever.
local function read(key, hit)
  local raw = redis.call('GET', key) or ''
  local state = {key = key, raw = raw, none = true, until_s = 0, until_ns = 0}
  local body = 0
  if #raw > 9 then
    state.none = false
    body = hit.algorithm.read(state, raw, hit)
  end
  if #raw > body then state.until_s, state.until_ns = struct.unpack('>I5I4', raw, body + 1) end
  return state
end

local function read_hits()
  local hits, states, at = {}, {}, 1
  while at <= #ARGV[2] do
    local hit, algorithm, index = {}, 0, 0
    algorithm, index, hit.op, hit.binding, hit.never, hit.charged, hit.idle, hit.penalty_s, hit.penalty_ns, at =
      struct.unpack('>BBBBBBBI5I4', ARGV[2], at)
    hit.algorithm = algorithms[algorithm]
    at = hit.algorithm.hit(hit, at)
    if not states[index + 1] then states[index + 1] = read(KEYS[index + 1], hit) end
    hit.state = states[index + 1]
    hit.state.hit = hit
    hits[#hits + 1] = hit
  end
  return hits, states
end

local function has_penalty(hit)
  return hit.penalty_s > 0 or hit.penalty_ns > 0
end

local function is_shut_out(hit)
  return has_penalty(hit) and less(now_s, now_ns, hit.state.until_s, hit.state.until_ns)
end

-- What a clock that was set back has left is cut down, and debt converted to a new T: kept whatever the verdict.
local function adopt(hit)
  if hit.idle == 1 then return end
  local state = hit.state
  hit.algorithm.adopt(state, hit)
  if has_penalty(hit) then
    local s, ns = plus(now_s, now_ns, hit.penalty_s, hit.penalty_ns)
    state.until_s, state.until_ns = least(state.until_s, state.until_ns, s, ns)
  end
end

local function refuses(hit)
  if hit.never == 1 then return true end
  if hit.op == RENEW then return not hit.algorithm.is_alive(hit.state, hit) end
  if hit.op ~= TAKE and hit.op ~= LOOK then return false end
  return is_shut_out(hit) or (hit.idle == 0 and not hit.algorithm.fits(hit.state, hit))
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
    if allowed then hit.algorithm.charge(state, hit) end
    return
  end
  if hit.charged == 1 and hit.idle == 0 then hit.algorithm.force(state, hit) end
  if hit.idle == 0 and has_penalty(hit) and (hit.charged == 1 or not is_shut_out(hit)) then
    local s, ns = plus(now_s, now_ns, hit.penalty_s, hit.penalty_ns)
    state.until_s, state.until_ns = most(state.until_s, state.until_ns, s, ns)
  end
end

local function give_back(hit, allowed)
  local state = hit.state
  if hit.op == REFUND and hit.idle == 0 then
    hit.algorithm.refund(state, hit)
  elseif hit.op == RENEW and allowed and not hit.refused then
    hit.algorithm.renew(state, hit)
  elseif hit.op == RESET then
    state.none, state.until_s, state.until_ns = true, 0, 0
  end
end

-- The state ends when neither its body nor its penalty counts any more.
local function write(state)
  local value, s, ns = '', state.until_s, state.until_ns
  local shut_out = s > 0 or ns > 0
  if not state.none then
    value = state.hit.algorithm.bytes(state)
    s, ns = most(s, ns, state.hit.algorithm.ends(state, state.hit))
  end
  if shut_out then value = value .. struct.pack('>I5I4', state.until_s, state.until_ns) end
  if value == state.raw then return end
  if value == '' then redis.call('DEL', state.key) else redis.call('SET', state.key, value, ending(s, ns)) end
end

local hits, states = read_hits()
local answer = {}
for i, state in ipairs(states) do answer[i] = struct.pack('>I4', #state.raw) .. state.raw end
for _, hit in ipairs(hits) do adopt(hit) end
for _, hit in ipairs(hits) do hit.refused = refuses(hit) end
local allowed = verdict(hits)
for _, hit in ipairs(hits) do
  if hit.op == TAKE then take_or_punish(hit, allowed) end
end
for _, hit in ipairs(hits) do
  if hit.op == FORCE and hit.never == 0 and hit.idle == 0 then hit.algorithm.force(hit.state, hit) end
end
for _, hit in ipairs(hits) do give_back(hit, allowed) end
for _, state in ipairs(states) do write(state) end
return struct.pack('>I5I4B', now_s, now_ns, allowed and 1 or 0) .. table.concat(answer)
