-- include: records waking
-- configure: set what is given.
-- ARGV 9 paused: 0 or 1, or empty; 10 keep: milliseconds, or empty
-- Reply: [now, made, paused, keep, resumed]
make()
local resumed = has('p') and ARGV[9] == '0'
if ARGV[9] ~= '' then flag('p', ARGV[9] == '1') end
if ARGV[10] ~= '' then
  keep = tonumber(ARGV[10])
  call('HSET', META, 'keep', ARGV[10])
end
if resumed then wake(now) end
return finish(cjson.encode({now, tonumber(made), has('p'), keep, resumed}))
