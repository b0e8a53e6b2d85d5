-- release: end the leases of messages, whoever holds them; counts as a failed attempt.
-- ARGV 5 reason; from 6 on: ids
-- Reply: [now, 0, [outcome of each]]
forget()
local outcomes = {}
local earliest
for i = 6, #ARGV do
  local r = R().locate(ARGV[i])
  local done = r ~= nil and r.token ~= nil
  if done then
    if R().failed(r, r.holder, ARGV[5], now) then
      count('retried')
      R().to_ready(r)
      R().save(r)
    end
    R().let_go(r)
    if not r.aside and (not earliest or r.due < earliest) then earliest = r.due end
  end
  outcomes[#outcomes + 1] = R().outcome(r, done)
end
wake(earliest)
return answer(outcomes)
