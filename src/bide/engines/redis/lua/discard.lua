-- discard: delete dead letters.
-- ARGV from 5 on: ids
-- Reply: [now, 0, [outcome of each]]; done ones have gone: [true, null, due]
forget()
local outcomes, members = {}, {}
for i = 5, #ARGV do
  local r = R().locate(ARGV[i])
  if r and r.aside == 'dead' then
    R().leave(r)
    R().delete(r)
    members[#members + 1] = r.member
    outcomes[#outcomes + 1] = '[true,null,' .. number(r.due) .. ']'
  else
    outcomes[#outcomes + 1] = R().outcome(r, false)
  end
end
if #members > 0 then
  count('purged', #members)
  gone(members)
end
return answer(outcomes)
