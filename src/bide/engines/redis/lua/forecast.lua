-- forecast: how many messages fall due when.
-- ARGV 8 bucket: milliseconds; 9 buckets; 10 start: where the first one begins; empty: now, or the hour
-- Reply: [now, change, start, due before it, [how many in each], due after]
-- Buckets of an hour or more begin on whole hours; the first one counts only what is not yet due.
define('forecast', {'no-writes'}, function()
  local given, bucket = tonumber(ARGV[10]), tonumber(ARGV[8])
  local start = given or bucket < 3600000 and now or now - now % 3600000
  local function by(moment) return call('ZCOUNT', DELAYED, '-inf', int(moment * 256 + 255)) end
  local first = by(given or now)
  local last, counts = first, {}
  for i = 1, tonumber(ARGV[9]) do
    local reached = by(start + bucket * i)
    counts[i] = reached - last
    last = reached
  end
  return answer(start, call('ZCARD', READY) + first, counts, call('ZCARD', DELAYED) - last)
end)
