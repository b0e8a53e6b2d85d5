-- Tags. Of many messages that are put together the client writes the records whole, though it knows
-- neither their chunk nor the moment of their put: a tag of its own stands there, and delays.
--   alive  hash, beside what _order.lua says: tag -> name of the chunk, and that moment;
--          @name -> tag. They go with the chunk.
-- A record with a tag begins with the tag, ten characters of which the first is ~, the place in the
-- chunk, and the due moment, or + and twelve digits: milliseconds from the put on.

local tags = {}

-- Returns the seq of a record, and when it is due, thirteen digits.
local function place_of(text, alive)
  if byte(text) ~= 126 then return sub(text, 1, 13), sub(text, 15, 27) end
  local tag, due = sub(text, 1, 10), sub(text, 15, 27)
  local known = tags[tag]
  if not known then
    local told = call('HGET', alive, tag) or 'ffffffffff 0'
    known = {name = sub(told, 1, 10), moment = tonumber(sub(told, 12)), dues = {}}
    tags[tag] = known
  end
  if byte(due) == 43 then
    local moment = known.dues[due]
    if not moment then
      moment = string.format('%013d', known.moment + sub(due, 2))
      known.dues[due] = moment
    end
    due = moment
  end
  return known.name .. sub(text, 11, 13), due
end

-- Returns a record as it is without its tag.
local function without_tag(text, alive)
  if not text or byte(text) ~= 126 then return text end
  local seq, due = place_of(text, alive)
  return seq .. ' ' .. due .. sub(text, 28)
end
