-- include: records
-- flags: allow-oom
-- ack: messages are done and leave the queue, or are kept for a while if the queue keeps.
-- ARGV from 9 on, two for each, no id twice: id, token
-- Reply: [now, [outcome of each]]; [now, []] if all have left
local total = (#ARGV - 8) / 2
local ids, outcomes = {}, {}
for i = 1, total do ids[i] = ARGV[7 + 2 * i] end
local held = total > 0 and call('HMGET', LEASES, unpack(ids)) or {}
local acked, members, last, token, holds = {}, {}, nil, nil, false
for i = 1, total do
  local mark = held[i] and sub(held[i], ORDER + 2)
  if mark and mark ~= last then  -- most leases of one ack are of one claim
    local until_
    token, until_ = match(mark, '^(%d+) (%d+) ')
    last, holds = mark, tonumber(until_) > now
  end
  if not mark or not holds or token ~= ARGV[8 + 2 * i] then
    outcomes[i] = outcome(locate(ids[i]), false)
  elseif keep > 0 then
    local r = locate(ids[i])
    r.attempt = r.attempt + 1
    set_aside(r, 'acked')
    count('acked')
    outcomes[i] = outcome(r, true)
  else
    local n = #acked + 1
    acked[n], members[n], outcomes[i] = ids[i], sub(held[i], 1, ORDER) .. ids[i], '[true]'
  end
end
if #acked > 0 then
  delete_records(acked)
  call('HDEL', LEASES, unpack(acked))
  call('ZREM', LEASED, unpack(members))
  count('acked', #acked)
end
return answer(#acked == total and {} or outcomes)
