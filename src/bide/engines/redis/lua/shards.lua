-- shards: of how many shards a queue is made.
-- ARGV 5: of how many to make it if it is not there, or empty: only look
-- Reply: JSON [now, made, how many or 0, the next number of a message here]
local wanted = tonumber(ARGV[5])
local found = exists and tonumber(meta[7] or 1) or 0
if not exists and wanted then
  SHARDS, found = wanted, wanted
  make()
end
return finish('[' .. concat({number(now), made, found, number(seq)}, ',') .. ']')
