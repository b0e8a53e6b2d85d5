-- put: store messages whose ids are not there yet.
-- ARGV 5 flags: of all messages, w: one has a priority, g: a group, e: an expiry; f: all ids were
--        made up for them
--      6 when: of all: a moment, or + and a delay; empty: each has its own
--      7 priority: of all; empty: each has its own
--      8 lines: the ids as the order of puts tells them when all of them are new
--      9 tag: with it records are whole, see _tags.lua; empty: they are told from the kind on
--      from 10 on, no id twice: all ids; all records; and where each has its own,
--      of all the moment or the delay, and of all the priority, or priority, moment of death
--      or -, and group; of several shards also the number of each among those of all shards, of
--      which all are in one chunk
-- Reply: [now, made, [[index, outcome...] of each that was there], the next number or nothing]
make()
forget()
local own = (ARGV[6] == '' and 1 or 0) + (ARGV[7] == '' and 1 or 0)
local several = SHARDS ~= 1
local total = (#ARGV - 9) / (2 + own + (several and 1 or 0))
local first_text, first_when, first_mark = 9 + total, 9 + total * 2, 9 + total * (1 + own)
local first_number = 9 + total * (2 + own)

-- Whether all ids are new for sure. Those that were made up can be there only if this very call came
-- before; then its tag is known. And nothing speaks against the tag, see is_tagged.
local function is_fresh()
  if several or ARGV[9] == '' or not find(ARGV[5], 'f', 1, true) then return false end
  local chunk = floor(seq / PLACES) + (open > 0 and 1 or 0)
  local found = call('HMGET', ALIVE, ARGV[9], '@' .. string.format('%010x', chunk))
  return not found[1] and not found[2]
end

local known = {}
if total > 0 and not is_fresh() then known = call('HMGET', RECORDS, unpack(ARGV, 10, 9 + total)) end
local new, kept = total, {}
for i = 1, total do
  if known[i] then new = new - 1 end
end
local name, place, lines = '', 0, ARGV[8]
local base, span = 0, new  -- the number of the first new one, and to behind the last one
if several and new > 0 then
  local ids, places = {}, {}
  for i = 1, total do
    if not known[i] then
      local at = tonumber(ARGV[first_number + i])
      if #ids == 0 then base = at end
      ids[#ids + 1], places[#places + 1] = ARGV[9 + i], at - base
      span = at - base + 1
    end
  end
  name, place = room(new, span, base)
  lines = O().lines_for(ids, new >= LONG, places)
elseif new > 0 then
  name, place = room(new, new)
  if new < total then
    local ids = {}
    for i = 1, total do
      if not known[i] then ids[#ids + 1] = ARGV[9 + i] end
    end
    lines = O().lines_for(ids, new >= LONG)
  end
end

-- What is to be stored, for variadic commands.

local start = place
local ranks, texts, groups = {}, {}, {}
local r, t = 0, 0
local earliest, due, due_text, rank, row
local when_before, priority_before, priority, died
local digits = {'0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f'}

local function resolve(when)
  due = tonumber(when)
  if byte(when) == 43 then due = now + due end
  due_text = string.format(' %013d ', due)
  when_before, rank = when, nil
end

local function row_of(place, low)
  return name .. string.format('%02x', (place - low) / 16)
end

local function place_dead(mark, member)
  local group
  priority, died, group = string.match(mark, '^(%d+) (%S+) (.*)$')
  if group ~= '' then
    groups[#groups + 1] = '0'
    groups[#groups + 1] = group .. '\1' .. member
  end
  if died == '-' then return false end
  call('ZADD', ENDED.dead, died, member)
  count('died')
  return true
end

-- As most messages are that are put together: all new, and alike but for id and body. With a tag
-- the records are whole.
local function place_alike(tagged)
  resolve(ARGV[6])
  rank, earliest = number(due * 256 + 255 - ARGV[7]), due
  for i = 1, total do
    local low, id = place % 16, ARGV[9 + i]
    if low == 0 or i == 1 then row = row_of(place, low) end
    local digit, text = digits[low + 1], ARGV[first_text + i]
    texts[t + 1], texts[t + 2] = id, tagged and text or row .. digit .. due_text .. text
    ranks[t + 1], ranks[t + 2] = rank, row .. digit .. id
    t, place = t + 2, place + 1
  end
end

local function place_one(i, id)
  local when = own > 0 and ARGV[6] == '' and ARGV[first_when + i] or ARGV[6]
  if when ~= when_before then resolve(when) end
  if several then place, row = start + ARGV[first_number + i] - base, nil end
  local low = place % 16
  if low == 0 or not row then row = row_of(place, low) end
  local seq_text = row .. digits[low + 1]
  local member = seq_text .. id
  local text = ARGV[first_text + i]
  if ARGV[9] ~= '' then text = sub(text, 29) end
  texts[t + 1], texts[t + 2] = id, seq_text .. due_text .. text
  t, place = t + 2, place + 1
  local mark = ARGV[7]
  local dead = false
  if mark == '' then
    mark = ARGV[first_mark + i]
    if find(mark, ' ', 1, true) then
      dead = place_dead(mark, member)
      mark = priority
    end
  end
  if not dead then
    if not rank or mark ~= priority_before then
      priority_before, rank = mark, number(due * 256 + 255 - mark)
    end
    ranks[r + 1], ranks[r + 2] = rank, member
    r = r + 2
    if not earliest or due < earliest then earliest = due end
  end
end

-- Whether a tag can be taken at its word: the messages stand as it was reckoned with.
local function is_tagged()
  local tag = ARGV[9]
  if tag == '' or new < total or place > 0 then return false end
  if call('HSETNX', ALIVE, tag, name .. ' ' .. number(now)) == 0 then return false end
  if call('HSETNX', ALIVE, '@' .. name, tag) == 1 then return true end
  call('HDEL', ALIVE, tag)
  return false
end

if is_tagged() then
  flag('t', true)
  place_alike(true)
elseif new == total and own == 0 and not several and ARGV[9] == '' then
  place_alike(false)
else
  for i = 1, total do
    local id = ARGV[9 + i]
    if known[i] then
      kept[#kept + 1] = '[' .. (i - 1) .. ',' .. R().outcome(R().locate(id, known[i]), false) .. ']'
    else
      place_one(i, id)
    end
  end
end
if new > 0 then
  list(new, span, name, start, lines)
  add('ZADD', DELAYED, ranks)
  many('HSET', RECORDS, texts)
  many('ZADD', GROUPS, groups)
  for letter in string.gmatch(ARGV[5], '[wge]') do flag(letter, true) end
  wake(earliest)
end
return answer(kept, several and seq)
