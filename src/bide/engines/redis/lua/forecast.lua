-- forecast: how many messages fall due when.
-- ARGV 5 bucket: milliseconds; 6 buckets; 7 start: where the first one begins, or empty: now
-- Reply: JSON [start, due before it, [how many in each], due after]
local start, bucket = tonumber(ARGV[7]) or now, tonumber(ARGV[5])
local function by(moment) return call('ZCOUNT', DELAYED, '-inf', number(moment * 256 + 255)) end
local first = by(start)
local last, counts = first, {}
for i = 1, tonumber(ARGV[6]) do
  local reached = by(start + bucket * i)
  counts[i] = reached - last
  last = reached
end
return '[' .. number(start) .. ',' .. number(call('ZCARD', READY) + first) .. ',['
  .. concat(counts, ',') .. '],' .. number(call('ZCARD', DELAYED) - last) .. ']'
