-- include: records waking
-- flags: allow-oom
-- retry: give messages back, to be delivered again; without attempts left they are dead letters.
-- ARGV 9 delay; 10 untouched: 1 to count no attempt; 11 reason; from 12 on, two for each: id, token
-- Reply: [now, [outcome of each]]
local due, untouched = now + ARGV[9], ARGV[10] == '1'
local outcomes, earliest = {}, nil
for i = 12, #ARGV, 2 do
  local r = locate(ARGV[i])
  local done = r ~= nil and r.token == ARGV[i + 1]
  if done then
    if untouched and due == now then
      move(r, READY, ready_rank(r))
    elseif untouched or failed(r, ARGV[11], now) then
      if not untouched then count('retried') end
      -- The moment at which it expires stays where it is.
      if r.expires then r.expires = r.expires - (due - r.due) end
      r.due = due
      to_delayed(r)
    end
    if not r.state and (not earliest or r.due < earliest) then earliest = r.due end
  end
  outcomes[#outcomes + 1] = outcome(r, done)
end
wake(earliest)
return answer(outcomes)
