-- replace: store messages, in the place of those with their ids that nobody holds.
-- ARGV as for put, one message after the other; an id may come twice.
-- ARGV 5 flags: as for put, and r: only dead letters are replaced, nothing new is stored;
--      last =VERSION: only what still is of this version is replaced, and nothing new is stored
-- Reply: [now, made, [outcome of each]]
local flags, version = string.match(ARGV[5], '^(%a*)=?(%x*)$')
local only_dead = string.find(flags, 'r') ~= nil
make()
forget()
local outcomes = {}
local earliest
for at = 6, #ARGV, 4 do
  local id, when, mark, rest = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local old = R().locate(id)
  if only_dead and not (old and old.aside == 'dead') then
    outcomes[#outcomes + 1] = R().outcome(old, false)
  elseif version ~= '' and not (old and R().is_still(old, 'v' .. version)) then
    outcomes[#outcomes + 1] = R().outcome(old, false)
  elseif old and (old.token or old.aside == 'acked' or old.aside == 'expired') then
    outcomes[#outcomes + 1] = R().outcome(old, false)
  else
    local due = tonumber(when)
    if string.byte(when) == 43 then due = now + due end
    local seq
    if old then
      if old.aside == 'dead' then count('revived') end
      R().leave(old)
      R().delete(old)
      seq = old.seq
    else
      local number = call('HINCRBY', META, 'seq', 1)
      in_order(number - 1, {id})
      seq = string.format('%010x', number)
    end
    local text = seq .. ' ' .. number(due) .. ' ' .. rest
    local r = R().parse(id, text)
    call('HSET', RECORDS, id, text)
    if r.group ~= '' then
      call('ZADD', GROUPS, 0, r.group .. '\1' .. r.member)
      flag(GROUPED, 'grouped')
    end
    if r.priority ~= 0 then flag(WEIGHTED, 'weighted') end
    if r.expires then flag(EXPIRING, 'expiring') end
    if r.aside then
      call('ZADD', ENDED.dead, r.ended, r.member)
      count('died')
    else
      R().to_delayed(r)
      if not earliest or due < earliest then earliest = due end
    end
    outcomes[#outcomes + 1] = R().outcome(r, true)
  end
end
wake(earliest)
return answer(outcomes)
