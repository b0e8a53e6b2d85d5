-- revive: let dead letters be handed out again, with all their attempts before them.
-- ARGV 5 delay; from 6 on: ids
-- Reply: [now, 0, [outcome of each]]
forget()
local due = now + ARGV[5]
local outcomes, moved = {}, false
for i = 6, #ARGV do
  local r = R().locate(ARGV[i])
  local done = false
  if r and r.aside == 'dead' then
    R().leave(r)
    r.due, r.attempt = due, 0
    R().to_delayed(r)
    R().save(r)
    count('revived')
    done, moved = true, true
  end
  outcomes[#outcomes + 1] = R().outcome(r, done)
end
if moved then wake(due) end
return answer(outcomes)
