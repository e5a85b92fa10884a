-- Shared by scripts whose keys are no strings.
local function end_key(key, s, ns)
  local by, at = ending(s, ns)
  redis.call(by == 'PX' and 'PEXPIRE' or 'PEXPIREAT', key, at)
end

