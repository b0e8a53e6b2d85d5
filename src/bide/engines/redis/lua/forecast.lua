-- forecast: how many messages fall due when.
-- ARGV 5 bucket: milliseconds; 6 buckets; 7 start: where the first one begins; empty: now, or the hour
-- Reply: JSON [start, due before it, [how many in each], due after]
local given, bucket = tonumber(ARGV[7]), tonumber(ARGV[5])
-- Buckets of an hour or more begin on whole hours; the first one counts only what is not yet due.
local start = given or bucket < 3600000 and now or now - now % 3600000
local function by(moment) return call('ZCOUNT', DELAYED, '-inf', number(moment * 256 + 255)) end
local first = by(given or now)
local last, counts = first, {}
for i = 1, tonumber(ARGV[6]) do
  local reached = by(start + bucket * i)
  counts[i] = reached - last
  last = reached
end
return '[' .. number(start) .. ',' .. number(call('ZCARD', READY) + first) .. ',['
  .. concat(counts, ',') .. '],' .. number(call('ZCARD', DELAYED) - last) .. ']'
