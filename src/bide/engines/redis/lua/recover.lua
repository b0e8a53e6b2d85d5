-- recover: tell again what a claim leased whose reply was lost.
-- ARGV 5 token; 6 until: when its lease lapses
-- Reply: as that of a claim
local mine = L().held_by(ARGV[5] .. ' ' .. ARGV[6])
local head = cjson.encode({now, tonumber(ARGV[5]), null, 1, 0, 0, #mine, false})
local texts = each('HMGET', RECORDS, mine)
for i, text in ipairs(texts) do texts[i] = without_tag(text, ALIVE) end
return {head, concat(mine, '\n'), texts, ''}
