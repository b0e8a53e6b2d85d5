-- cancel_one: take back one delayed message that has nothing but a body, where nothing else is to
-- be done. Stands alone in its pipeline, as `put_one`, so that `cancel` can follow.
-- KEYS 1 meta; 2 records; 3 delayed; 4 order; 5 alive; 6 try
-- ARGV 5 id
-- Reply: when it was due; nothing if nothing was done
local META, RECORDS, DELAYED, ORDER, ALIVE = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local id = ARGV[5]
local meta = call('HMGET', META, 'flags', 'listed')
if not meta[1] or find(meta[1], '[ks]') then return false end
local text = call('HGET', RECORDS, id)
if not text or byte(text, 29) < 97 then return false end
local seq, due = place_of(text, ALIVE)
if byte(due) == 48 then return false end

local name = sub(seq, 1, 10)
local told = (call('HGET', ALIVE, name) or 0) - 1
local alive, all = told % 1024, math.floor(told / 1024)
-- Much of the order of puts is about nothing: `cancel` looks after it.
if alive * 4 < all and tonumber(meta[2] or 0) > 2 * call('HLEN', RECORDS) + 1024 then return false end
if call('ZREM', DELAYED, seq .. id) == 0 then return false end
call('HDEL', RECORDS, id)
if told > 0 and alive == 0 then
  local chunk = tonumber(name, 16)
  call('ZREMRANGEBYSCORE', ORDER, chunk, chunk)
  local tag = call('HGET', ALIVE, '@' .. name)
  call('HDEL', ALIVE, name, '@' .. name, tag or name)
  call('HINCRBY', META, 'listed', -all)
else
  call('HSET', ALIVE, name, told)
end
call('HINCRBY', META, 'cancelled', '1')
return remember(due)
