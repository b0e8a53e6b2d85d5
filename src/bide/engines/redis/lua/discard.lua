-- include: records
-- flags: allow-oom
-- discard: delete dead letters.
-- ARGV from 9 on: ids
-- Reply: [now, [outcome of each]]
local outcomes = {}
for i = 9, #ARGV do
  local r = locate(ARGV[i])
  if r and r.state == 'dead' then
    delete(r)
    count('purged')
    outcomes[#outcomes + 1] = gone(r)
  else
    outcomes[#outcomes + 1] = outcome(r, false)
  end
end
return answer(outcomes)
