-- include: records
-- flags: allow-oom
-- cancel: take back messages that nobody holds.
-- ARGV 9 still: what the caller saw (see is_still), or empty; from 10 on: ids, none twice
-- Reply: [now, [outcome of each]]
local outcomes = {}
for i = 10, #ARGV do
  local r, found = locate_pending(ARGV[i])
  if r and (ARGV[9] == '' or is_still(r, ARGV[9])) then
    delete(r)
    count('cancelled')
    outcomes[#outcomes + 1] = gone(r)
  else
    outcomes[#outcomes + 1] = outcome(found, false)
  end
end
return answer(outcomes)
