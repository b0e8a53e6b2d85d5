-- extend: let leases lapse at another moment.
-- ARGV 5 lease: milliseconds from now; from 6 on, two for each: id, token
-- Reply: [now, 0, [outcome of each]]
forget()
local outcomes = {}
local moment = now + ARGV[5]
local before, after = {}, {}  -- how many of each lease, and the ids of each that they change to
local held = {}
for i = 6, #ARGV, 2 do
  local r = R().locate(ARGV[i])
  local done = r ~= nil and r.token == ARGV[i + 1]
  if done and r.until_ ~= moment then
    before[r.lease] = (before[r.lease] or 0) + 1
    r.lease, r.until_ = r.token .. ' ' .. number(moment), moment
    after[r.lease] = after[r.lease] or {}
    after[r.lease][#after[r.lease] + 1] = r.id
    held[#held + 1] = r.id
    held[#held + 1] = sub(r.seq, 1, NAME) .. r.lease .. ' ' .. r.holder
  end
  outcomes[#outcomes + 1] = R().outcome(r, done)
end
for lease, ids in pairs(after) do L().hold(lease, number(moment), ids) end
many('HSET', HELD, held)
for lease, total in pairs(before) do L().let_go(lease, total) end
return answer(outcomes)
