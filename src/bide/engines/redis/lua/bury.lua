-- bury: set messages aside as dead letters.
-- ARGV 5 reason; from 6 on, two for each: id, token
-- Reply: [now, 0, [outcome of each]]
forget()
local outcomes = {}
for i = 6, #ARGV, 2 do
  local r = R().locate(ARGV[i])
  local done = r ~= nil and r.token == ARGV[i + 1]
  if done then
    R().failed(r, r.holder, ARGV[5], now, true)
    R().let_go(r)
  end
  outcomes[#outcomes + 1] = R().outcome(r, done)
end
return answer(outcomes)
