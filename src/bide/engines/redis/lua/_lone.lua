-- What stands alone in its pipeline begins with this: was it done already by a call that was sent?
-- KEYS: the last one is try, see _frame.lua
-- ARGV 1 to 4 as for every verb; the slot is 0
local TRY, mark = KEYS[#KEYS], ARGV[2]
local call, find, sub, byte = redis.call, string.find, string.sub, string.byte
local again = byte(mark) == 63
if again then mark = sub(mark, 2) end
if byte(mark) == 33 then
  mark = sub(mark, 2)
  call('HSET', TRY, 'for', ARGV[3])
  call('EXPIRE', TRY, '150')
end
if again then
  local last = call('HGET', TRY, '0')
  if last and sub(last, 1, #mark + 1) == mark .. ' ' then
    call('HSET', TRY, '0', last)
    return sub(last, #mark + 2)
  end
end

local function done(reply)
  call('HSET', TRY, '0', mark .. ' ' .. reply)
  return reply
end
