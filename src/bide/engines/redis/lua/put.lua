-- put: store messages whose ids are not there yet.
-- ARGV 5 flags: of all messages, w: one has a priority, g: a group, e: an expiry
--      from 6 on, four for each message, no id twice:
--        id; when: a moment, or + and a delay; mark: the priority, and for a dead letter or
--        one of a group also: moment of death or -, group; rest: the record behind its due
-- Reply: [now, made, [[index, outcome...] of each that was there]]
make()
forget()
local byte, find = string.byte, string.find
local HEX = {[0] = '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'}
local base, stride = 6, 4
local total = (#ARGV - base + 1) / stride
local ids = {}
for i = 1, total do ids[i] = ARGV[base + (i - 1) * stride] end
local known = each('HMGET', RECORDS, ids)
local new, stored = {}, 0
for i = 1, total do
  if not known[i] then
    stored = stored + 1
    new[stored] = ids[i]
  end
end
local seq = 0
if stored > 0 then
  seq = call('HINCRBY', META, 'seq', stored) - stored
  in_order(seq, new)
end
local kept, ranks, texts, groups = {}, {}, {}, {}
local r, t = 0, 0
local earliest
local digits, due_before, due_text  -- most of these are as they were for the message before
for i = 1, total do
  local id = ids[i]
  if known[i] then
    kept[#kept + 1] = '[' .. (i - 1) .. ',' .. R().outcome(R().locate(id, known[i]), false) .. ']'
  else
    local at = base + (i - 1) * stride
    local when, mark = ARGV[at + 1], ARGV[at + 2]
    local due = tonumber(when)
    if byte(when) == 43 then due = now + due end
    seq = seq + 1
    local last = seq % 16
    if last == 0 or not digits then digits = string.format('%09x', (seq - last) / 16) end
    local order = digits .. HEX[last]
    local member = order .. id
    local priority, died, group = tonumber(mark), nil, nil
    if not priority then
      priority, died, group = string.match(mark, '^(%d+) (%S+) (.*)$')
      died = tonumber(died)
      if group ~= '' then
        groups[#groups + 1] = 0
        groups[#groups + 1] = group .. '\1' .. member
      end
    end
    if died then
      call('ZADD', ENDED.dead, died, member)
      count('died')
    else
      ranks[r + 1], ranks[r + 2] = due * 256 + 255 - priority, member
      r = r + 2
      if not earliest or due < earliest then earliest = due end
    end
    if due ~= due_before then due_before, due_text = due, string.format(' %.0f ', due) end
    texts[t + 1], texts[t + 2] = id, order .. due_text .. ARGV[at + 3]
    t = t + 2
  end
end
if stored > 0 then
  many('ZADD', DELAYED, ranks)
  many('HSET', RECORDS, texts)
  many('ZADD', GROUPS, groups)
  local flags = ARGV[5]
  if flags ~= '' then
    if find(flags, 'w') then flag(WEIGHTED, 'weighted') end
    if find(flags, 'g') then flag(GROUPED, 'grouped') end
    if find(flags, 'e') then flag(EXPIRING, 'expiring') end
  end
  wake(earliest)
end
return answer(kept)
