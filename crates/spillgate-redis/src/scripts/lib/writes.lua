-- Shared by scripts that write with more than one command.

-- A command that the user may not use ends a script in the middle, when others have charged, or before the key has its
-- end. So all are looked up before the first write.
local function may_use(key, commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(command, key) then error({err = 'NOPERM the user may not use ' .. command}) end
  end
end

-- Of keys that are no strings.
local function end_key(key, s, ns)
  local by, at = ending(s, ns)
  redis.call(by == 'PX' and 'PEXPIRE' or 'PEXPIREAT', key, at)
end

