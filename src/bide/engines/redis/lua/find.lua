-- find: look at messages by id.
-- ARGV from 5 on: ids
-- Reply: [now, records, what `held` says of each, or false]
local ids = {}
for i = 5, #ARGV do ids[i - 4] = ARGV[i] end
local texts = each('HMGET', RECORDS, ids)
for i, text in ipairs(texts) do texts[i] = without_tag(text, ALIVE) end
return {number(now), texts, L().marks_of(ids)}
