-- configure: set what is given.
-- ARGV 5 paused: 0 or 1, or empty; 6 keep: milliseconds, or empty
-- Reply: JSON [now, made, paused, keep, resumed]
make()
local resumed = false
forget()
if ARGV[5] ~= '' then
  resumed = has('p') and ARGV[5] == '0'
  flag('p', ARGV[5] == '1')
end
if ARGV[6] ~= '' then
  keep = tonumber(ARGV[6])
  call('HSET', META, 'keep', ARGV[6])
end
if resumed then wake(now) end
return finish(cjson.encode({now, tonumber(made), has('p'), keep, resumed}))
