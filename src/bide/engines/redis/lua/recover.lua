-- recover: tell again what a claim leased whose reply was lost.
-- ARGV 5 token; 6 until: when its leases lapse
-- Reply: [head, ids, records], as that of a claim
local ids = {}
for _, member in ipairs(call('ZRANGEBYSCORE', LEASED, ARGV[6], ARGV[6])) do
  ids[#ids + 1] = sub(member, SEQ + 1)
end
local mine = {}
for i, held in ipairs(each('HMGET', HELD, ids)) do
  if held and string.match(held, '^(%d+) ', SEQ + 1) == ARGV[5] then
    mine[#mine + 1] = ids[i]
  end
end
local head = cjson.encode({now, tonumber(ARGV[5]), null, 1, 0, 0, #mine, false})
return {head, concat(mine, '\n'), each('HMGET', RECORDS, mine)}
