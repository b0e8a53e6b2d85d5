-- extend: let leases lapse at another moment.
-- ARGV 5 lease: milliseconds from now; from 6 on, two for each: id, token
-- Reply: [now, 0, [outcome of each]]
forget()
local outcomes = {}
local moment = now + ARGV[5]
for i = 6, #ARGV, 2 do
  local r = R().locate(ARGV[i])
  local done = r ~= nil and r.token == ARGV[i + 1]
  if done then
    call('ZADD', LEASED, number(moment), r.member)
    r.until_ = moment
  end
  outcomes[#outcomes + 1] = R().outcome(r, done)
end
return answer(outcomes)
