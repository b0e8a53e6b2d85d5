-- ack: messages are done and leave the queue, or are kept for a while if the queue keeps.
-- ARGV 8 width: 2, or 3 with results; from 9 on, so many for each, no id twice: id, token, result in JSON
--      or empty
-- Reply: [now, change, [outcome of each], nexts]; the list is empty if all have left; nexts as of change
define('ack', {'allow-oom'}, function()
  local width = tonumber(ARGV[8])
  local total = (#ARGV - 8) / width
  local forgets = keep == 0 and not has('h') and not limited
  local ids, outcomes, acked, members, nexts, n = {}, {}, {}, {}, {}, 0
  for i = 1, total do ids[i] = ARGV[9 + (i - 1) * width] end
  local held = total > 0 and call('HMGET', LEASES, unpack(ids)) or {}
  local last, mine, holds, follows, earliest
  for i = 1, total do
    local lease, done = held[i], false
    if lease then
      local mark = sub(lease, ORDER + 2)
      if mark ~= last then  -- most leases of one ack are of one claim
        local until_
        last, mine, until_ = mark, match(mark, '^(%d+) (%d+) ')
        follows = find(mark, '\n', 1, true) ~= nil
        holds = (tonumber(until_) or 0) > now
      end
      done = holds and mine == ARGV[10 + (i - 1) * width]
    end
    if done and forgets and not follows then
      n = n + 1
      acked[n], members[n], outcomes[i] = ids[i], sub(lease, 1, ORDER) .. ids[i], {true}
    else
      local r = locate(ids[i])
      done = done and r ~= nil and r.token ~= nil
      if done then
        local result = width == 3 and ARGV[11 + (i - 1) * width] or ''
        r.attempt = r.attempt + 1
        remember_end(r, 'acked', r.holder, result ~= '' and result or nil)
        if r.successor then
          count('acked')
          count('put')
          follow(r)
          earliest = min(earliest or r.due, r.due)
        elseif keep > 0 then
          set_aside(r, 'acked')
        else
          delete(r, 'acked')
        end
      end
      outcomes[i] = done and r.gone and {true} or outcome(r, done)
      if limited then nexts[i] = {done, opens_next()} end
    end
  end
  advance()
  if n > 0 then
    count('acked', n)
    if has('g') then drop(acked) else call('HDEL', RECORDS, unpack(acked)) end
    call('HDEL', LEASES, unpack(acked))
    call('ZREM', LEASED, unpack(members))
  end
  if limited or earliest then wake(earliest and max(earliest, now)) end
  return finish(n == total and {} or outcomes, nexts)
end)
