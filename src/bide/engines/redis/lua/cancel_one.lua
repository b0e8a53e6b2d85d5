-- cancel_one: take back one delayed message that has nothing but a body, where nothing else is to
-- be done. Stands alone in its pipeline, as `put_one`, so that `cancel` can follow.
-- KEYS, and ARGV 1 to 4, as for every verb: see _frame.lua
-- ARGV 5 id
-- Reply: [0, 0, [due]]; nothing if nothing was done
local META, RECORDS, DELAYED, ORDER, ALIVE = KEYS[1], KEYS[2], KEYS[3], KEYS[13], KEYS[14]
local call, sub, byte, TRY = redis.call, string.sub, string.byte, KEYS[16]
local mark, id = ARGV[2], ARGV[5]
if byte(mark) == 63 then
  mark = sub(mark, 2)
  local last = call('GET', TRY)
  if last and sub(last, 1, #mark + 1) == mark .. ' ' then
    call('SET', TRY, last, 'EX', '60')
    return sub(last, #mark + 2)
  end
end

local meta = call('HMGET', META, 'flags', 'listed', 'shards')
if not meta[1] or meta[3] or string.find(meta[1], 'k', 1, true) then return false end
local text = call('HGET', RECORDS, id)
if not text or byte(text, 29) < 97 or byte(text, 15) == 48 then return false end

local name = sub(text, 1, 10)
local told = (call('HGET', ALIVE, name) or 0) - 1
local alive, all = told % 1024, math.floor(told / 1024)
-- Much of the order of puts is about nothing: `cancel` looks after it.
if alive * 4 < all and tonumber(meta[2] or 0) > 2 * call('HLEN', RECORDS) + 1024 then return false end
if call('ZREM', DELAYED, sub(text, 1, 13) .. id) == 0 then return false end
call('HDEL', RECORDS, id)
if told > 0 and alive == 0 then
  local chunk = tonumber(name, 16)
  call('ZREMRANGEBYSCORE', ORDER, chunk, chunk)
  call('HDEL', ALIVE, name)
  call('HINCRBY', META, 'listed', -all)
else
  call('HSET', ALIVE, name, told)
end
call('HINCRBY', META, 'cancelled', '1')
local reply = '[0,0,[' .. sub(text, 15, 27) .. ']]'
call('SET', TRY, mark .. ' ' .. reply, 'EX', '60')
return reply
