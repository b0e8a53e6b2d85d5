-- cancel: take messages back that nobody holds.
-- ARGV 5 still: what the caller saw (see is_still), or empty; from 6 on: ids, none twice
-- Reply: [now, 0, [outcome of each]]; of a done one, which has gone: its due moment
forget()
local still = ARGV[5]
local total = exists and #ARGV - 5 or 0
local texts = total > 0 and call('HMGET', RECORDS, unpack(ARGV, 6)) or {}
local held = {}
for i = 1, has('h') and total or 0 do
  if texts[i] then
    L().spread()
    break
  end
end
if total > 0 and call('EXISTS', HELD) == 1 then held = call('HMGET', HELD, unpack(ARGV, 6)) end
local outcomes, members, ids, groups = {}, {}, {}, {}
local n = 0
for i = 1, #ARGV - 5 do
  local id, text = ARGV[5 + i], texts[i]
  local seq, due
  if text and not held[i] and still == '' and not is_long(text) then
    seq, due = place_of(text, ALIVE)
  end
  if due and byte(due) ~= 48 then
    n = n + 1
    ids[n], members[n], outcomes[i] = id, seq .. id, due
  else
    local r
    if text then r = held[i] and R().locate(id, text) or R().parse(id, text) end
    if r and not r.token and not r.aside and (still == '' or R().is_still(r, still)) then
      n = n + 1
      ids[n], members[n], outcomes[i] = id, r.member, number(r.due)
      if r.group ~= '' then groups[#groups + 1] = r.group .. '\1' .. r.member end
    else
      outcomes[i] = R().outcome(r, false)
    end
  end
end
if n > 0 then
  if many('ZREM', DELAYED, members) < n then many('ZREM', READY, members) end
  many('HDEL', RECORDS, ids)
  many('ZREM', GROUPS, groups)
  count('cancelled', n)
  gone(members)
end
return answer(outcomes)
