-- Functions for scripts that write with more than one command.

-- Raises an error if the user may not call all these commands on the key. A command that the user may not call ends the
-- script in the middle. Then some keys would be charged and others not, or a key would never expire. So a script checks
-- all its commands before its first write.
local function may_use(key, commands)
  for _, command in ipairs(commands) do
    if not redis.acl_check_cmd(command, key) then error({err = 'NOPERM the user may not use ' .. command}) end
  end
end

-- Makes the key expire at (s, ns). It is for lists, sorted sets and hashes, because SET can write only strings.
local function end_key(key, s, ns)
  local by, at = ending(s, ns)
  redis.call(by == 'PX' and 'PEXPIRE' or 'PEXPIREAT', key, at)
end

