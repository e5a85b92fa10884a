    -- Makes the key expire at the time that ending() in lib/ending.lua computes. The code of ending() is repeated here,
    -- because Redis would create that function again in each call of the script.
    local done
    if fits and ARGV[1] == '' then
      done = redis.pcall('SET', key, value, 'PXAT', string.format('%d', s * 1000 + math.ceil(ns / 1000000)))
    elseif fits then
      done = redis.pcall('SET', key, value, 'PX', 3600000)
    end
    if done and done.err then reply = done end
  end
  replies[i] = reply
end
if #KEYS == 1 then return replies[1] end
return replies
