-- peek: what a claim over several shards would find in this one. Takes back leases that are over, and
-- moves what is due to ready.
-- ARGV 8 how many messages to tell of; 9 how many may be taken back
-- Reply: [now, change, highest token, taken back, how many are ready, [rank, order, 1 if it has expired] of
--   the first ones, flat, and as `claim` which are dead now]
define('peek', {'allow-oom'}, function()
  local most, lapsed = tonumber(ARGV[8]), 0
  local found, listed = {}, {}
  advance()
  if exists and not has('p') then
    lapsed = take_back(tonumber(ARGV[9]))
    if most > 0 then promote(has('w') and 1000 or most - call('ZCARD', READY)) end
    found = most > 0 and call('ZRANGE', READY, 0, most - 1, 'WITHSCORES') or {}
  end
  for i = 1, #found, 2 do
    local id, late = sub(found[i], ORDER + 1), 0
    local text = has('e') and call('HGET', RECORDS, id)
    local r = text and parse(id, text)
    if r and is_late(r) then late = 1 end
    listed[#listed + 1] = tonumber(found[i + 1])
    listed[#listed + 1] = tonumber(sub(found[i], 1, ORDER), 16)
    listed[#listed + 1] = late
  end
  return finish(token, lapsed, #found > 0 and call('ZCARD', READY) or 0, listed, died)
end)
