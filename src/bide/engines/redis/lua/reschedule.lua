-- include: records waking
-- reschedule: move messages that nobody holds to another moment.
-- ARGV 9 when: a moment, or + and a delay; 10 still: what the caller saw (see is_still), or empty
--     from 11 on: ids
-- Reply: [now, [outcome of each]]
local due, still = tonumber(ARGV[9]), ARGV[10]
if sub(ARGV[9], 1, 1) == '+' then due = now + due end
local outcomes, moved = {}, false
for i = 11, #ARGV do
  local r, found = locate_pending(ARGV[i])
  local done = r ~= nil and (still == '' or is_still(r, still))
  if done then
    r.due = due
    to_delayed(r)
    moved = true
  end
  outcomes[#outcomes + 1] = outcome(found, done)
end
if moved then wake(due) end
return answer(outcomes)
