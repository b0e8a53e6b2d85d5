-- include: records waking
-- put: store messages. No id is named twice.
-- ARGV 8 conflict: what becomes of a message that is there: keep, replace, or revive (dead ones only)
--     9 version: replace only messages that still are of it, and store nothing new; or empty
--     10 flags: w some have a priority, g a group, e an expiry
--     11 numbers: in a queue of several shards, the place of each among those of all shards
--     12 when: of all messages, a moment, or + and a delay; empty: each has its own
--     13 mark: of all messages, "priority", or "priority died group" with - for no death; or empty
--     from 14 on, for each: id; record from `kind` on; when 12 or 13 is empty also when and mark
-- Reply: [now, change, next number, [index, outcome] of each message that was there or is not stored,
--   whether this made the shard]
local conflict, version = ARGV[8], ARGV[9]
local all_when, all_mark = ARGV[12], ARGV[13]
local width = (all_when == '' or all_mark == '') and 4 or 2
local total = (#ARGV - 13) / width
make()

local numbers = {}
for number in string.gmatch(ARGV[11], '%d+') do numbers[#numbers + 1] = tonumber(number) end

local ids, known = {}, {}
for i = 1, total do ids[i] = ARGV[14 + (i - 1) * width] end
if total > 0 then known = call('HMGET', RECORDS, unpack(ids)) end

local ranks, texts, groups, told = {}, {}, {}, {}
local earliest, new = nil, 0
local last_when, due, due_text, last_mark, priority, died, group

-- Stores a message in the order `order`. Returns the set where it now stands.
local function store(order, id, text)
  local member = order .. id
  texts[#texts + 1], texts[#texts + 2] = id, order .. due_text .. text
  if group ~= '' then
    groups[#groups + 1], groups[#groups + 2] = 0, group .. '\1' .. member
  end
  if died then
    call('ZADD', DEAD, int(died), member)
    count('died')
    return DEAD
  end
  ranks[#ranks + 1], ranks[#ranks + 2] = int(due * 256 + 255 - priority), member
  if not earliest or due < earliest then earliest = due end
  return DELAYED
end

local left = {}
local function meet(index, id, text)  -- a message that is there
  records()
  local r = locate(id, known[index])
  local replaced = not r.token and (conflict == 'revive' and r.state == 'dead' or conflict == 'replace'
    and (not r.state or r.state == 'dead') and (version == '' or is_still(r, 'v' .. version)))
  if not replaced then
    told[#told + 1] = '[' .. (index - 1) .. ',' .. sub(outcome(r, false), 2)
    return
  end
  if r.state == 'dead' then count('revived') end
  if r.group ~= '' and r.group ~= group then call('ZREM', GROUPS, r.group .. '\1' .. r.member) end
  left[#left + 1] = {r, store(r.order, id, text)}
  local stands = died and 'dead' or due <= now and 'ready' or 'delayed'
  told[#told + 1] = cjson.encode({index - 1, true, stands, due, died or null})
end

for i = 1, total do
  local at = 14 + (i - 1) * width
  local when = width == 4 and ARGV[at + 2] or all_when
  local mark = width == 4 and ARGV[at + 3] or all_mark
  if when ~= last_when then
    last_when, due = when, tonumber(when)
    if sub(when, 1, 1) == '+' then due = now + due end
    due_text = string.format(' %013d ', due)
  end
  if mark ~= last_mark then
    last_mark = mark
    priority, died, group = match(mark, '^(%d+) ?(%S*) ?(.*)$')
    died = tonumber(died)
  end
  if known[i] then
    meet(i, ids[i], ARGV[at + 1])
  elseif conflict == 'revive' or version ~= '' then
    told[#told + 1] = '[' .. (i - 1) .. ',false]'
  else
    if numbers[i] and numbers[i] > seq then seq = numbers[i] end
    store(string.format('%012x', seq), ids[i], ARGV[at + 1])
    seq, new = seq + 1, new + 1
  end
end
for letter in string.gmatch(ARGV[10], '%a') do flag(letter, true) end
advance('seq', int(seq))
if new > 0 then count('put', new) end
if #ranks > 0 then call('ZADD', DELAYED, unpack(ranks)) end
if #texts > 0 then call('HSET', RECORDS, unpack(texts)) end
if #groups > 0 then call('ZADD', GROUPS, unpack(groups)) end
for _, each in ipairs(left) do leave(each[1], each[2]) end
wake(earliest)
return finish(int(seq) .. ',[' .. concat(told, ',') .. '],' .. tostring(made))
