-- find: look at messages by id.
-- ARGV 8 bytes: how large the reply may become; from 9 on: ids
-- Reply: [head, records, leases]: of the first ids, for which there is room; false where there is none
define('find', {'no-writes'}, function()
  local READ = 64
  local texts, ids, left, some = {}, {}, tonumber(ARGV[8]), false
  for first = 9, #ARGV, READ do
    local last = min(first + READ - 1, #ARGV)
    for i, text in ipairs(call('HMGET', RECORDS, unpack(ARGV, first, last))) do
      if text then
        left = left - #text
        if left < 0 and some then break end
        some = true
      end
      texts[#texts + 1], ids[#ids + 1] = text, ARGV[first + i - 1]
    end
    if left < 0 and some then break end
  end
  return {answer(), texts, #ids > 0 and call('HMGET', LEASES, unpack(ids)) or {}}
end)
