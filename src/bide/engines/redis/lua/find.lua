-- find: look at messages by id.
-- ARGV from 5 on: ids
-- Reply: [now, records, leases]; a lease is "seq token holder", a record without one has false;
--   each lease is followed by the moment until which it holds
local ids = {}
for i = 5, #ARGV do ids[i - 4] = ARGV[i] end
local texts = each('HMGET', RECORDS, ids)
local helds = each('HMGET', HELD, ids)
local leases = {}
for i, held in ipairs(helds) do
  leases[#leases + 1] = held
  leases[#leases + 1] = held and call('ZSCORE', LEASED, sub(held, 1, SEQ) .. ids[i]) or false
end
return {number(now), texts, leases}
