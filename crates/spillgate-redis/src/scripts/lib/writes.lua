-- Functions for scripts that write with more than one command.

-- Raises an error if the Redis user lacks the right to one of these commands on the key. A script ends
-- at a command to which the user has no right. If this were its second write, some keys would be charged and others
-- not, or a key would never expire. So a script checks all its commands before its first write.
local function may_use(key, commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(command, key) then error({err = 'NOPERM the user may not use ' .. command}) end
  end
end

-- Makes the key of a list, a sorted set or a hash expire at (s, ns). A string needs no such call: SET writes the string
-- and its end.
local function end_key(key, s, ns)
  local by, at = ending(s, ns)
  redis.call(by == 'PX' and 'PEXPIRE' or 'PEXPIREAT', key, at)
end

