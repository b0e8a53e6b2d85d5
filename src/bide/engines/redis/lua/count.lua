-- count: how many messages are where, and what has become of all others.
-- Reply: JSON [delayed, ready, leased, dead, kept, paused, keep, oldest or null, strays, counters]
local due = call('ZCOUNT', DELAYED, '-inf', number(now * 256 + 255))
local delayed, ready = call('ZCARD', DELAYED), call('ZCARD', READY)
local leased, dead = call('HLEN', HELD), call('ZCARD', ENDED.dead)
local whole = L().whole()
for _, lease in ipairs(whole) do leased = leased + (call('HGET', LEASES, lease .. ' left') or 0) end
local kept = call('ZCARD', ENDED.acked) + call('ZCARD', ENDED.expired)
local oldest
if due > 0 then
  oldest = floor(tonumber(call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]) / 256)
end
local rank = '-inf'
while ready > 0 do  -- the first of each weight is its oldest
  local first = call('ZRANGEBYSCORE', READY, rank, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if not first then break end
  first = tonumber(first)
  local moment = first % WEIGHT
  if not oldest or moment < oldest then oldest = moment end
  rank = number((floor(first / WEIGHT) + 1) * WEIGHT)
end
local strays = math.abs(call('HLEN', RECORDS) - delayed - ready - leased - dead - kept)
  + math.abs(call('HLEN', LEASES) - 2 * call('ZCARD', LEASED) - #whole - math.min(#whole, 1))
local counters = call('HMGET', META, 'put', 'acked', 'cancelled', 'expired', 'purged', 'died',
  'revived', 'retried', 'lapsed')
for i = 1, 9 do counters[i] = tonumber(counters[i] or 0) end
counters[1] = counters[1] + in_tail()
return cjson.encode({delayed - due, ready + due, leased, dead, kept, has('p'), keep,
  oldest or null, strays, counters})
