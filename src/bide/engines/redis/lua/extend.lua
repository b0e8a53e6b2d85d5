-- include: records
-- flags: allow-oom
-- extend: let leases lapse at another moment.
-- ARGV 9 lease: milliseconds from now; from 10 on, two for each: id, token
-- Reply: [now, [outcome of each]]
local outcomes, moment = {}, now + ARGV[9]
for i = 10, #ARGV, 2 do
  local r = locate(ARGV[i])
  local done = r ~= nil and r.token == ARGV[i + 1]
  if done then
    r.until_ = moment
    call('HSET', LEASES, r.id, concat({r.order, r.token, int(moment), r.holder}, ' '))
    call('ZADD', LEASED, int(moment), r.member)
  end
  outcomes[#outcomes + 1] = outcome(r, done)
end
return answer(outcomes)
