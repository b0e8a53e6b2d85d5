-- include: records leasing
-- flags: allow-oom
-- peek: what a claim over several shards would find in this one. Collects lapsed leases.
-- ARGV 9 how many messages to tell of; how many may be 10 taken back, 11 promoted: 0 for none
-- Reply: [now, paused, highest token, weighted, taken back, promoted, how many are ready, how many are
--   due beside them, [rank, order, 1 if it has expired] of the first ones, flat]
--   The first ones are ready ones, or if there are none, due ones.
local lapsed, promoted = 0, 0
if exists and not has('p') then
  lapsed, promoted = take_back(tonumber(ARGV[10])), promote(tonumber(ARGV[11]))
end
local ready, due = call('ZCARD', READY), call('ZCOUNT', DELAYED, '-inf', REACH)
local most, found = tonumber(ARGV[9]), {}
if most > 0 and ready > 0 then
  found = call('ZRANGE', READY, 0, most - 1, 'WITHSCORES')
elseif most > 0 and due > 0 then
  found = call('ZRANGEBYSCORE', DELAYED, '-inf', REACH, 'WITHSCORES', 'LIMIT', 0, most)
end
local listed = {}
for i = 1, #found, 2 do
  local id, late = sub(found[i], ORDER + 1), 0
  local text = has('e') and call('HGET', RECORDS, id)
  if text and is_late(parse(id, text)) then late = 1 end
  listed[#listed + 1] = int(tonumber(found[i + 1]))
  listed[#listed + 1] = int(tonumber(sub(found[i], 1, ORDER), 16))
  listed[#listed + 1] = late
end
return finish('[' .. concat({int(now), tostring(has('p')), int(tonumber(meta[1] or 0)),
  tostring(has('w')), lapsed, promoted, ready, due, '[' .. concat(listed, ',') .. ']'}, ',') .. ']')
