-- include: records waking
-- flags: allow-oom
-- release: end the lease of messages, whoever holds them: a failed attempt, ready again at once.
-- ARGV 9 reason; from 10 on: ids
-- Reply: [now, [outcome of each]]
local outcomes, earliest = {}, nil
for i = 10, #ARGV do
  local r = locate(ARGV[i])
  local done = r ~= nil and r.token ~= nil
  if done then
    if failed(r, ARGV[9], now) then
      count('retried')
      move(r, READY, ready_rank(r))
      earliest = now
    end
  end
  outcomes[#outcomes + 1] = outcome(r, done)
end
wake(earliest)
return answer(outcomes)
