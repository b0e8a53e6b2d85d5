-- find: look at messages by id.
-- ARGV from 5 on: ids
-- Reply: [now, records, what `held` says of each, or false]
local ids = {}
for i = 5, #ARGV do ids[i - 4] = ARGV[i] end
return {number(now), each('HMGET', RECORDS, ids), each('HMGET', HELD, ids)}
