-- Part of decide.lua and merge.lua: states that are strings.

-- Opens a state that is a string. A state has a body, which its algorithm reads. If the state ever had a penalty (a
-- time in which takes are refused), the end and the length of the penalty follow the body. An older version of this
-- script wrote a penalty without its length.
local function open_string(state, algorithm, quota)
  state.raw = redis.call('GET', state.key) or ''
  local length
  state.body, length = algorithm.read(#state.raw > 9 and state.raw or '', quota)
  local left = #state.raw - length
  local is_known = left == 0 or left == 9 or left == 19 or (algorithm.last and length > 0 and (left == 1 or left == 10))
  if not is_known then error('the value is no state') end
  if left >= 9 then state.until_s, state.until_ns = struct.unpack('>I5I4', state.raw, length + 1) end
  if left == 19 then state.span_s, state.span_ns = struct.unpack('>I5I4', state.raw, length + 10) end
end

-- Returns the bytes of a state: its body, its penalty if it has one, and a last byte. For a bucket the last byte is b
-- (bucket.lua). The other algorithms write a last byte only after a penalty, so that the length of the value differs from
-- that of older forms. A state with a penalty always has a body. The body is all zeros if nothing is used. An older
-- version of this script wrote neither the length of the penalty nor the last byte. Such a state keeps its old form
-- until it changes.
local function to_string(state, quota)
  local body, algorithm = state.body, state.algorithm
  local shut_out = state.until_s > 0 or state.until_ns > 0
  if body.none and not (shut_out and state.span_s) then
    return shut_out and struct.pack('>I5I4', state.until_s, state.until_ns) or ''
  end
  local bytes = body.none and algorithm.nothing(quota) or algorithm.bytes(body, shut_out and state.span_s)
  local last = not body.none and algorithm.last and algorithm.last(body)
  if not shut_out then return bytes .. (last or '') end
  bytes = bytes .. struct.pack('>I5I4', state.until_s, state.until_ns)
  if not state.span_s then return bytes .. (last or '') end
  return bytes .. struct.pack('>I5I4', state.span_s, state.span_ns) .. (last or '\63')
end

-- Returns the bytes of a state that is a string, and the time when its key expires: when neither its body nor its penalty
-- counts any more.
local function after(state, quota)
  local value, s, ns = to_string(state, quota), state.until_s, state.until_ns
  if not state.body.none then s, ns = most(s, ns, state.algorithm.ends(state.body, quota)) end
  return value, s, ns
end
