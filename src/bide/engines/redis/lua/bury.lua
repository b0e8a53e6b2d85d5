-- include: records
-- flags: allow-oom
-- bury: make messages dead letters.
-- ARGV 9 reason; from 10 on, two for each: id; token of the lease, or empty: one that nobody holds, which
--      counts no attempt
-- Reply: [now, [outcome of each]]
local outcomes = {}
for i = 10, #ARGV, 2 do
  local id, token = ARGV[i], ARGV[i + 1]
  local r = locate(id)
  local done = r ~= nil and not r.state and (r.token or '') == token
  if done and token ~= '' then
    failed(r, ARGV[9], now, true)
  elseif done then
    add_failure(r, '', ARGV[9], now)
    count('died')
    set_aside(r, 'dead')
  end
  outcomes[#outcomes + 1] = outcome(r, done)
end
return answer(outcomes)
