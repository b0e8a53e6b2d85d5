-- set_aside: make dead letters of messages that nobody holds; no attempt is counted.
-- ARGV 5 reason; from 6 on: ids
-- Reply: [now, 0, [outcome of each]]
forget()
local outcomes = {}
for i = 6, #ARGV do
  local r = R().locate(ARGV[i])
  local done = r ~= nil and not r.token and not r.aside
  if done then
    R().leave(r)
    r.attempt = r.attempt - 1
    R().failed(r, '', ARGV[5], now, true)
  end
  outcomes[#outcomes + 1] = R().outcome(r, done)
end
return answer(outcomes)
