-- reschedule: move messages that nobody holds to another moment.
-- ARGV 5 when: a moment, or + and a delay; 6 still: what the caller saw (see is_still), or
--      empty; from 7 on: ids
-- Reply: [now, 0, [outcome of each]]
forget()
local due, still = tonumber(ARGV[5]), ARGV[6]
if byte(ARGV[5]) == 43 then due = now + due end
local outcomes, moved = {}, false
for i = 7, #ARGV do
  local r = R().locate(ARGV[i])
  local done = false
  if r and not r.token and not r.aside and (still == '' or R().is_still(r, still)) then
    R().leave(r)
    r.due = due
    R().to_delayed(r)
    R().save(r)
    done, moved = true, true
  end
  outcomes[#outcomes + 1] = R().outcome(r, done)
end
if moved then wake(due) end
return answer(outcomes)
