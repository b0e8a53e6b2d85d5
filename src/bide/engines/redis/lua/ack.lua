-- include: records
-- flags: allow-oom
-- ack: messages are done and leave the queue, or are kept for a while if the queue keeps.
-- ARGV from 8 on, two for each, no id twice: id, token
-- Reply: [now, change, [outcome of each]]; the list is empty if all have left
local total = (#ARGV - 7) / 2
local ids, outcomes = {}, {}
for i = 1, total do ids[i] = ARGV[6 + 2 * i] end
local held = total > 0 and call('HMGET', LEASES, unpack(ids)) or {}
local acked, members, last, token, holds = {}, {}, nil, nil, false
advance()
for i = 1, total do
  local mark = held[i] and sub(held[i], ORDER + LENGTH + 3)
  if mark and mark ~= last then  -- most leases of one ack are of one claim
    local until_
    token, until_ = match(mark, '^(%d+) (%d+) ')
    last, holds = mark, tonumber(until_) > now
  end
  local done = mark and holds and token == ARGV[7 + 2 * i] or false
  if done and keep == 0 then
    local n = #acked + 1
    acked[n], members[n], outcomes[i] = ids[i], sub(held[i], 1, ORDER) .. ids[i], '[true]'
  else
    records()
    local r = locate(ids[i])
    if done then
      r.attempt = r.attempt + 1
      set_aside(r, 'acked')
    end
    outcomes[i] = outcome(r, done)
  end
end
if #acked > 0 then
  if has('g') then
    records()
    drop(acked)
  else
    call('HDEL', RECORDS, unpack(acked))
  end
  call('HDEL', LEASES, unpack(acked))
  call('ZREM', LEASED, unpack(members))
  count('acked', #acked)
end
return finish('[' .. (#acked == total and '' or concat(outcomes, ',')) .. ']')
