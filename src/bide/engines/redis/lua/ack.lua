-- ack: messages are done and leave the queue, or are kept for a while if the queue keeps.
-- ARGV from 8 on, two for each, no id twice: id, token
-- Reply: [now, change, [outcome of each]]; the list is empty if all have left
define('ack', {'allow-oom'}, function()
  local total = (#ARGV - 7) / 2
  local ids, outcomes, acked, members, n = {}, {}, {}, {}, 0
  for i = 1, total do ids[i] = ARGV[6 + 2 * i] end
  local held = total > 0 and call('HMGET', LEASES, unpack(ids)) or {}
  local last, mine, holds
  for i = 1, total do
    local lease, done = held[i], false
    if lease then
      local mark = sub(lease, ORDER + 2)
      if mark ~= last then  -- most leases of one ack are of one claim
        local until_
        last, mine, until_ = mark, match(mark, '^(%d+) (%d+) ')
        holds = tonumber(until_) > now
      end
      done = holds and mine == ARGV[7 + 2 * i]
    end
    if done and keep == 0 then
      n = n + 1
      acked[n], members[n], outcomes[i] = ids[i], sub(lease, 1, ORDER) .. ids[i], '[true]'
    else
      local r = locate(ids[i])
      if done then
        r.attempt = r.attempt + 1
        set_aside(r, 'acked')
      end
      outcomes[i] = outcome(r, done)
    end
  end
  if n > 0 then
    advance(nil, nil, 'acked', n)
    if has('g') then drop(acked) else call('HDEL', RECORDS, unpack(acked)) end
    call('HDEL', LEASES, unpack(acked))
    call('ZREM', LEASED, unpack(members))
  else
    advance()
  end
  return finish('[' .. (n == total and '' or concat(outcomes, ',')) .. ']')
end)
