-- find: look at messages by id.
-- ARGV 5 how many bytes the records may have, the first one in any case; from 6 on: ids
-- Reply: [now, records, what `held` says of each, or false]; of the first ids, if all are too large
local ids, texts, room = {}, {}, tonumber(ARGV[5])
local empty = true
for i = 6, #ARGV do
  local text = call('HGET', RECORDS, ARGV[i])
  if text then
    room = room - #text
    if room < 0 and not empty then break end
    empty = false
  end
  ids[i - 5], texts[i - 5] = ARGV[i], without_tag(text, ALIVE)
end
return {number(now), texts, L().marks_of(ids)}
