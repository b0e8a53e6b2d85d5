-- The mark of a call, by which a script that is sent again tells what it told before. In front of
-- all scripts.
-- KEYS, the last one: try, a hash: slot -> mark and reply, of the last changes of this lane
-- ARGV 2 mark: "number/slot"; before it ? when it is sent again, and !seconds! when `try` is to live
--        for so long from now; empty: reads only
--      3 lane
local KEYS, ARGV = KEYS, ARGV  -- to look into a global takes longer
local call, find, sub, byte = redis.call, string.find, string.sub, string.byte
local TRY, MARK = KEYS[#KEYS], ARGV[2]
local again = byte(MARK) == 63
if again then MARK = sub(MARK, 2) end
if byte(MARK) == 33 then
  local seconds
  seconds, MARK = string.match(MARK, '^!(%d+)!(.*)$')
  call('HSET', TRY, 'for', ARGV[3])
  call('EXPIRE', TRY, seconds)
end

local function remember(reply)
  local slot = sub(MARK, find(MARK, '/', 1, true) + 1)
  if call('HSET', TRY, slot, MARK .. ' ' .. reply) == 1 then  -- it may be new: somebody has wiped all
    call('EXPIRE', TRY, '3600', 'NX')
  end
  return reply
end

if again then
  local last = call('HGET', TRY, sub(MARK, find(MARK, '/', 1, true) + 1))
  if last and sub(last, 1, #MARK + 1) == MARK .. ' ' then
    return remember(sub(last, #MARK + 2))  -- a WAIT behind this waits for what it tells of
  end
end
