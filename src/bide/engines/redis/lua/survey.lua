-- survey: what a claim over several shards would find in this one; what lapsed is taken back.
-- ARGV 5 how many messages to tell of; how many may be 6 taken back, 7 weighed: 0 for none
-- Reply: JSON [now, paused, highest token, weighted, taken back, weighed, how many are ready and
--   how many due beside them, [rank, number, 1 if it is too late] of the first ones, flat]
--   These are ready ones, or if there are none, due ones.
local most = tonumber(ARGV[5])
forget()
local lapsed, weighed = 0, 0
if exists and not has('p') then
  if ARGV[6] ~= '0' then lapsed = take_back(math.min(tonumber(ARGV[6]), 200)) end
  if ARGV[7] ~= '0' then weighed = promote(math.min(tonumber(ARGV[7]), 1000)) end
end
local ready, due = call('ZCARD', READY), call('ZCOUNT', DELAYED, '-inf', reach)
local found = {}
if most > 0 and ready > 0 then
  found = call('ZRANGE', READY, '0', most - 1, 'WITHSCORES')
elseif most > 0 and due > 0 then
  found = call('ZRANGEBYSCORE', DELAYED, '-inf', reach, 'WITHSCORES', 'LIMIT', '0', most)
end

local function is_late(id)
  local text = call('HGET', RECORDS, id)
  local r = is_long(text) and R().parse(id, text)
  return r and r.expires and now > r.due + r.expires
end

local listed = {}
for i = 1, #found, 2 do
  listed[#listed + 1] = number(tonumber(found[i + 1]))
  listed[#listed + 1] = number(tonumber(sub(found[i], 1, SEQ), 16))
  listed[#listed + 1] = has('e') and is_late(sub(found[i], SEQ + 1)) and 1 or 0
end
tell_counts()
return '[' .. concat({number(now), tostring(has('p')), number(tonumber(meta[1] or 0)),
  tostring(has('w')), lapsed, weighed, ready, due, '[' .. concat(listed, ',') .. ']'}, ',') .. ']'
