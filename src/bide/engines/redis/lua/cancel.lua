-- cancel: take messages back that nobody holds.
-- ARGV 5 still: what the caller saw (see is_still), or empty; from 6 on: ids, none twice
-- Reply: [now, 0, [outcome of each]]; done ones have gone: [true, null, due]
forget()
local still = ARGV[5]
local ids = {}
for i = 6, #ARGV do ids[i - 5] = ARGV[i] end
local texts = exists and each('HMGET', RECORDS, ids) or {}
local helds = exists and call('EXISTS', HELD) == 1 and each('HMGET', HELD, ids) or {}
local outcomes, members, gone, groups = {}, {}, {}, {}
for i, id in ipairs(ids) do
  local r
  if texts[i] then r = helds[i] and R().locate(id, texts[i]) or R().parse(id, texts[i]) end
  if r and not r.token and not r.aside and (still == '' or R().is_still(r, still)) then
    members[#members + 1] = r.member
    gone[#gone + 1] = id
    if r.group ~= '' then groups[#groups + 1] = r.group .. '\1' .. r.member end
    outcomes[i] = '[true,null,' .. number(r.due) .. ']'
  else
    outcomes[i] = R().outcome(r, false)
  end
end
if #gone > 0 then
  if many('ZREM', DELAYED, members) < #gone then many('ZREM', READY, members) end
  many('HDEL', RECORDS, gone)
  many('ZREM', GROUPS, groups)
  count('cancelled', #gone)
  tidy(#gone)
end
return answer(outcomes)
