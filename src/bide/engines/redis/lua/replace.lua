-- replace: store messages, in the place of those with their ids that nobody holds.
-- ARGV from 6 on, three for each message; an id may come twice: id; when: a moment, or + and a
--      delay; the record from the kind on; of several shards a fourth: its number among all
--      5 r: only dead letters are replaced; =VERSION: only what still is of this version; nothing
--      new is stored then; or empty
-- Reply: [now, made, [outcome of each], the next number or nothing]
local which, version = string.match(ARGV[5], '^(%a*)=?(%x*)$')
local only_dead = which == 'r'
make()
forget()
local outcomes = {}
local earliest
local several = SHARDS ~= 1
for at = 6, #ARGV, several and 4 or 3 do
  local id, when, rest = ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local old = R().locate(id)
  if only_dead and not (old and old.aside == 'dead') then
    outcomes[#outcomes + 1] = R().outcome(old, false)
  elseif version ~= '' and not (old and R().is_still(old, 'v' .. version)) then
    outcomes[#outcomes + 1] = R().outcome(old, false)
  elseif old and (old.token or old.aside == 'acked' or old.aside == 'expired') then
    outcomes[#outcomes + 1] = R().outcome(old, false)
  else
    local due = tonumber(when)
    if byte(when) == 43 then due = now + due end
    local mine
    if old then
      if old.aside == 'dead' then count('revived') end
      R().leave(old)
      R().delete(old)
      mine = old.seq
    else
      local name, place = room(1, 1, several and tonumber(ARGV[at + 3]))
      list(1, 1, name, place, id .. '\n')
      mine = name .. string.format('%03x', place)
    end
    local text = mine .. string.format(' %013d ', due) .. rest
    local r = R().parse(id, text)
    call('HSET', RECORDS, id, text)
    if r.group ~= '' then
      call('ZADD', GROUPS, '0', r.group .. '\1' .. r.member)
      flag('g', true)
    end
    if r.priority ~= 0 then flag('w', true) end
    if r.expires then flag('e', true) end
    if r.aside then
      call('ZADD', ENDED.dead, number(r.ended), r.member)
      count('died')
    else
      R().to_delayed(r)
      if not earliest or due < earliest then earliest = due end
    end
    outcomes[#outcomes + 1] = R().outcome(r, true)
  end
end
wake(earliest)
return answer(outcomes, several and seq)
