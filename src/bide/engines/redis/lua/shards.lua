-- shards: tell of how many shards a queue is made.
-- ARGV 9 wanted: of how many to make it if it is not there; empty: only look
-- Reply: [now, made, how many or 0, next number of a message here]
if not exists and ARGV[9] ~= '' then
  SHARDS = tonumber(ARGV[9])
  meta[5] = SHARDS
  make()
end
return finish('[' .. concat({int(now), made, exists and meta[5] or '0', int(seq)}, ',') .. ']')
