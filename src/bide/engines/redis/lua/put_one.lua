-- put_one: store one message that has nothing but a body, where nothing else is to be done.
-- What `put` makes ready for all cases takes longer than to store one message. This knows one case,
-- and stands alone in its pipeline, so that `put` can follow where it is another.
-- KEYS 1 meta; 2 records; 3 delayed; 4 tail; 5 try
-- ARGV 5 when: a moment, or + and a delay; 6 priority; 7 id; 8 record from the kind on
-- Reply: when it is due, and behind it a ! if it is due already; nothing if nothing was done
local META, RECORDS, DELAYED, TAIL = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local when, priority, id = ARGV[5], ARGV[6], ARGV[7]
local meta = call('HMGET', META, 'flags', 'seq')
local flags, seq = meta[1], tonumber(meta[2] or 0)
-- The queue is to be made; or something to be forgotten; or the tail is to become a chunk, by the
-- numbers of _frame.lua and _room.lua.
if not flags or find(flags, '[ks]') or seq % 4096 > 254 then return false end
if priority ~= '0' and not find(flags, 'w', 1, true) then return false end

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local due = tonumber(when)
if byte(when) == 43 then due = now + due end
if find(flags, 'l', 1, true) then  -- somebody waits: is it known when to ask, and soon enough?
  local at = tonumber(call('HGET', META, 'lead_at') or nil)
  if not at or at > due or at + 50 <= now then return false end
end

local head = string.format('%013x %013d ', seq, due)
if call('HSETNX', RECORDS, id, head .. ARGV[8]) == 0 then return false end
call('ZADD', DELAYED, due * 256 + 255 - priority, sub(head, 1, 13) .. id)
call('APPEND', TAIL, id .. '\n')
call('HINCRBY', META, 'seq', '1')
local reply = sub(head, 15, 27)
return remember(due > now and reply or reply .. '!')
