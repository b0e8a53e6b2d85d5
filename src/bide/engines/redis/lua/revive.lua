-- include: records waking
-- revive: let dead letters be delivered again, with all their attempts.
-- ARGV 9 delay; from 10 on: ids
-- Reply: [now, [outcome of each]]
local outcomes, moved = {}, false
for i = 10, #ARGV do
  local r = locate(ARGV[i])
  local done = r ~= nil and r.state == 'dead'
  if done then
    r.due, r.attempt = now + ARGV[9], 0
    to_delayed(r)
    count('revived')
    moved = true
  end
  outcomes[#outcomes + 1] = outcome(r, done)
end
if moved then wake(now + ARGV[9]) end
return answer(outcomes)
