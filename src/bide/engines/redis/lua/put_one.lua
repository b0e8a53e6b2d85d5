-- put_one: store one message that has nothing but a body, where nothing else is to be done.
-- What `put` makes ready for all cases takes longer than to store one message. This knows one case,
-- and stands alone in its pipeline, so that `put` can follow where it is another.
-- KEYS, and ARGV 1 to 4, as for every verb: see _frame.lua
-- ARGV 5 when: a moment, or + and a delay; 6 priority; 7 id; 8 record from the kind on
-- Reply: [now, 0, []]; nothing if nothing was done
local META, RECORDS, DELAYED, TAIL, TRY = KEYS[1], KEYS[2], KEYS[3], KEYS[15], KEYS[16]
local call, find, format = redis.call, string.find, string.format
local mark, when, priority, id = ARGV[2], ARGV[5], ARGV[6], ARGV[7]
if string.byte(mark) == 63 then
  mark = string.sub(mark, 2)
  local last = call('GET', TRY)
  if last and string.sub(last, 1, #mark + 1) == mark .. ' ' then
    call('SET', TRY, last, 'EX', '60')
    return string.sub(last, #mark + 2)
  end
end

local meta = call('HMGET', META, 'token', 'flags', 'put', 'seq', 'open', 'lead_at', 'shards')
local flags, open = meta[2], tonumber(meta[5])
-- The queue is to be made; or something to be forgotten; or the tail is to become a chunk.
if not meta[1] or meta[7] or find(flags, 'k', 1, true) or open > 62 then return false end
if priority ~= '0' and not find(flags, 'w', 1, true) then return false end

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local due = tonumber(when)
if string.byte(when) == 43 then due = now + due end
if find(flags, 'l', 1, true) then  -- somebody waits: is it known when to ask, and soon enough?
  local at = tonumber(meta[6] or nil)
  if not at or at > due or at + 50 <= now then return false end
end

local seq = format('%013x', meta[4])
if call('HSETNX', RECORDS, id, seq .. format(' %013.0f ', due) .. ARGV[8]) == 0 then return false end
call('ZADD', DELAYED, format('%.0f', due * 256 + 255 - priority), seq .. id)
call('APPEND', TAIL, id .. '\n')
call('HSET', META, 'put', meta[3] + 1, 'seq', format('%.0f', meta[4] + 1), 'open', open + 1)
local reply = format('[%.0f,0,[]]', now)
call('SET', TRY, mark .. ' ' .. reply, 'EX', '60')
return reply
