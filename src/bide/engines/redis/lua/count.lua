-- count: how many messages are where, and what has become of all others.
-- Reply: [now, change, delayed, ready, leased, dead, kept, paused, keep, oldest or null, strays, counters,
--   history, result_ttl, [limit, rate, group_limit, group_rate]]

-- Returns how many messages are where; the last of these numbers: how many of DELAYED are due.
local function sizes()
  return call('ZCARD', DELAYED), call('ZCARD', READY), call('HLEN', LEASES), call('ZCARD', DEAD),
    call('ZCARD', KEPT), call('ZCOUNT', DELAYED, '-inf', due_by_now())
end

define('count', {'no-writes'}, function()
  local delayed, ready, leased, dead, kept, due = sizes()
  local oldest
  if due > 0 then oldest = floor(call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2] / 256) end
  for _, range in ipairs(ready > 0 and ranges('ready') or {}) do  -- the first of each is its oldest
    local first = call('ZRANGEBYSCORE', READY, int(range[2]), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    local moment = first % STRIPE
    if not oldest or moment < oldest then oldest = moment end
  end
  local strays = math.abs(call('HLEN', RECORDS) - delayed - ready - leased - dead - kept)
    + math.abs(leased - call('ZCARD', LEASED)) + (limited and count_lines(ready, leased) or 0)
  local counters = call('HMGET', META, 'put', 'acked', 'cancelled', 'expired', 'purged', 'died',
    'revived', 'retried', 'lapsed')
  for i, value in ipairs(counters) do counters[i] = tonumber(value or 0) end
  read_ends_settings()
  return answer(delayed - due, ready + due, leased, dead, kept, has('p'), keep, oldest or null, strays,
    counters, history, results, {limits_now()})
end)

-- delete: delete this shard of a queue if nothing is in it.
-- ARGV 8 really: 1, or 0 to only look
-- Reply: [now, change, exists, delayed, ready, leased, dead, kept]; the last five are 0 if it was deleted
define('delete', {'allow-oom'}, function()
  local delayed, ready, leased, dead, kept, due = sizes()
  local existed = exists
  if exists and ARGV[8] == '1' and delayed + ready + leased + dead + kept == 0 then
    advance()
    call('DEL', META)
    call('UNLINK', ENDED, ENDINGS, LINES, TURNS, SHARES, FORWARDED)
    limited = false
    -- For a week, clients see that nothing was lost: the number of changes goes on.
    call('HSET', META, 'change', int(change))
    call('EXPIRE', META, 604800)
    if has('l') then  -- lanes wait: the next put makes the queue again and wakes one of them
      call('HSET', META, 'flags', 'l')
      if leader then call('HSET', META, 'leader', int(lead_at) .. ' ' .. leader) end
    end
  end
  return finish(existed, delayed - due, ready + due, leased, dead, kept)
end)
