-- count: how many messages are where, and what has become of all others.
-- Reply: [now, change, delayed, ready, leased, dead, kept, paused, keep, oldest or null, strays, counters,
--   history, result_ttl, [limit, rate, group_limit, group_rate]]
define('count', {'no-writes'}, function()
  local due = call('ZCOUNT', DELAYED, '-inf', due_by_now())
  local delayed, ready = call('ZCARD', DELAYED), call('ZCARD', READY)
  local leased, dead, kept = call('HLEN', LEASES), call('ZCARD', DEAD), call('ZCARD', KEPT)
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
