-- For scripts that write with more than one command.

-- A command that the user may not use would end the script in the middle, after other keys were charged, or before the
-- key got its end. So all commands are checked before the first write.
local function may_use(key, commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(command, key) then error({err = 'NOPERM the user may not use ' .. command}) end
  end
end

-- Sets the end of a key that is not a string.
local function end_key(key, s, ns)
  local by, at = ending(s, ns)
  redis.call(by == 'PX' and 'PEXPIRE' or 'PEXPIREAT', key, at)
end

