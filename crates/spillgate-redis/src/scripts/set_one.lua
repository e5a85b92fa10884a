-- As of ending(), of which Redis would make a function in each call.
if fits and ARGV[1] == '' then
  redis.call('SET', KEYS[1], value, 'PXAT', string.format('%d', s * 1000 + math.ceil(ns / 1000000)))
elseif fits then
  redis.call('SET', KEYS[1], value, 'PX', 3600000)
end
return struct.pack('>I5I4', now_s, now_ns) .. raw
