-- configure: set what is given.
-- ARGV 5 paused: 0 or 1, or empty; 6 keep: milliseconds, or empty
-- Reply: JSON [now, made, paused, keep, resumed]
make()
local resumed = false
forget()
if ARGV[5] ~= '' then
  resumed = meta[PAUSED] == '1' and ARGV[5] == '0'
  meta[PAUSED] = ARGV[5]
  call('HSET', META, 'paused', ARGV[5])
end
if ARGV[6] ~= '' then
  meta[KEEP] = ARGV[6]
  call('HSET', META, 'keep', ARGV[6])
end
if resumed then wake(now) end
return finish(cjson.encode({now, made, meta[PAUSED] == '1', tonumber(meta[KEEP] or 0), resumed}))
