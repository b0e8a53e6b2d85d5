-- put: store messages whose ids are not there yet.
-- ARGV 5 flags: of all messages, w: one has a priority, g: a group, e: an expiry
--      from 6 on, four for each message, no id twice:
--        id; when: a moment, or + and a delay; mark: the priority, and for a dead letter or
--        one of a group also: moment of death or -, group; rest: the record behind its due
-- Reply: [now, made, [[index, outcome...] of each that was there]]
make()
forget()
local base, stride = 6, 4
local total = (#ARGV - base + 1) / stride
local ids = {}
for i = 1, total do ids[i] = ARGV[base + (i - 1) * stride] end
local known = each('HMGET', RECORDS, ids)
local kept, ranks, texts, groups = {}, {}, {}, {}
local new = {}
for i = 1, total do
  if not known[i] then new[#new + 1] = ids[i] end
end
local stored = #new
local seq = stored > 0 and call('HINCRBY', META, 'seq', stored) - stored or 0
if stored > 0 then in_order(seq, new) end
local earliest
for i = 1, total do
  local id = ids[i]
  if known[i] then
    kept[#kept + 1] = '[' .. (i - 1) .. ',' .. R().outcome(R().locate(id, known[i]), false) .. ']'
  else
    local at = base + (i - 1) * stride
    local when, mark = ARGV[at + 1], ARGV[at + 2]
    local due = tonumber(when)
    if string.byte(when) == 43 then due = now + due end
    seq = seq + 1
    local order = string.format('%010x', seq)
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
      ranks[#ranks + 1] = due * 256 + 255 - priority
      ranks[#ranks + 1] = member
      if not earliest or due < earliest then earliest = due end
    end
    texts[#texts + 1] = id
    texts[#texts + 1] = order .. ' ' .. string.format('%.0f', due) .. ' ' .. ARGV[at + 3]
  end
end
if stored > 0 then
  many('ZADD', DELAYED, ranks)
  many('HSET', RECORDS, texts)
  many('ZADD', GROUPS, groups)
  local flags = ARGV[5]
  if flags ~= '' then
    if string.find(flags, 'w') then flag(WEIGHTED, 'weighted') end
    if string.find(flags, 'g') then flag(GROUPED, 'grouped') end
    if string.find(flags, 'e') then flag(EXPIRING, 'expiring') end
  end
  wake(earliest)
end
return answer(kept)
