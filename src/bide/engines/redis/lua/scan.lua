-- scan: look at messages, a slice at a time.
-- ARGV 5 which: all, group, ready, delayed, leased, dead, acked, expired
--      6 of delayed ones: due or waiting, or empty for both
--      7 after, 8 before, 9 group: what all must have in common, or empty
--      10 limit; 11 and 12 the place behind which to go on: rank and seq, or empty
--      13 how many bytes the records may have; 14: 1 if the first one may in any case
-- Reply: [head, ids, records, what `held` says of each, or false]
--   head is JSON: [now, place or null, full], place as two texts; full: there was no room for more
local which, due = ARGV[5], ARGV[6]
local after, before, group = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local limit = math.min(tonumber(ARGV[10]), 500)
local rank, seq = ARGV[11], ARGV[12]
local ids, texts, marks = {}, {}, {}
local place
local room, first_fits, full = tonumber(ARGV[13]), ARGV[14] == '1', false

local function fits(id, text)
  if not after and not before and group == '' then return true end
  local r = R().parse(id, text)
  return (not after or r.due >= after) and (not before or r.due < before)
    and (group == '' or r.group == group)
end

-- Returns whether there was room for it.
local function add(id, text)
  if not fits(id, text) then return true end
  if #text > room and not (first_fits and #ids == 0) then
    full = true
    return false
  end
  room = room - #text
  ids[#ids + 1], texts[#texts + 1] = id, without_tag(text, ALIVE)
  marks[#marks + 1] = call('HGET', HELD, id) or L().mark_in_whole(id)
  return true
end

-- Adds those of a chunk that stand behind the place; returns whether there was room for all.
local function add_listed(found, seqs)
  local first = 1
  while first <= #found and seqs[first] <= seq do first = first + 1 end
  while first <= #found do
    local last = math.min(#found, first + math.max(math.min(limit - #ids, 16), 1) - 1)
    local records = call('HMGET', RECORDS, unpack(found, first, last))
    for i = first, last do
      local record = records[i - first + 1]
      if record and place_of(record, ALIVE) == seqs[i] then
        if #ids == limit or not add(found[i], record) then return false end
      end
      place = {'0', seqs[i]}
    end
    first = last + 1
  end
  return true
end

local function all()
  local at = tonumber(sub(seq, 1, 10), 16) or 0
  for _ = 1, 40 do
    local text = call('ZRANGEBYSCORE', ORDER, at, '+inf', 'LIMIT', '0', '1')[1]
    if not text then break end
    if not add_listed(O().told_by_chunk(text)) then return end
    at = tonumber(sub(text, 1, 10), 16) + 1
    if #ids == limit then return end
  end
  if call('ZCOUNT', ORDER, at, '+inf') > 0 then return end
  local name = string.format('%010x', floor((meta[4] or 0) / PLACES))
  if add_listed(O().told_by(name, '', call('GET', TAIL) or '')) then place = nil end
end

local function of_group()
  local prefix = group .. '\1'
  local low = seq == '' and '[' .. prefix or '(' .. prefix .. seq .. '\255'
  local entries = call('ZRANGEBYLEX', GROUPS, low, '(' .. group .. '\2', 'LIMIT', 0, limit)
  for _, entry in ipairs(entries) do
    local member = sub(entry, #prefix + 1)
    local id = sub(member, SEQ + 1)
    if not add(id, call('HGET', RECORDS, id)) then return end
    place = {'0', sub(member, 1, SEQ)}
  end
  if #entries < limit then place = nil end
end

-- Returns at which index of a set the first one stands behind a rank and a seq.
local function behind(set)
  local low = call('ZCOUNT', set, '-inf', '(' .. rank)
  local high = call('ZCOUNT', set, '-inf', rank)
  while low < high do
    local middle = floor((low + high) / 2)
    local member = call('ZRANGE', set, middle, middle)[1]
    if sub(member, 1, SEQ) > seq then high = middle else low = middle + 1 end
  end
  return low
end

local function of_set(set)
  local first, reach = 0, math.huge
  if seq ~= '' then first = behind(set) end
  if which == 'delayed' then
    local low = 0
    if due == 'waiting' then low = now * 256 + 256 end
    if after then low = math.max(low, after * 256) end
    first = math.max(first, call('ZCOUNT', set, '-inf', '(' .. number(low)))
    if due == 'due' then reach = now * 256 + 255 end
    if before then reach = math.min(reach, before * 256 - 1) end
  end
  local found = call('ZRANGE', set, first, first + limit - 1, 'WITHSCORES')
  for i = 1, #found, 2 do
    local at = tonumber(found[i + 1])
    if at > reach then
      place = nil
      return
    end
    local id = sub(found[i], SEQ + 1)
    if not add(id, call('HGET', RECORDS, id)) then return end
    place = {number(at), sub(found[i], 1, SEQ)}
  end
  if #found < limit * 2 then place = nil end
end

-- Those who lapse at the same moment stand by seq, whatever leases they are of.
local function of_leases()
  local looked = 0
  while #ids < limit and looked < 500 do
    local low = rank == '' and '-inf' or seq == '' and '(' .. rank or rank
    local moment = call('ZRANGEBYSCORE', LEASED, low, '+inf', 'WITHSCORES', 'LIMIT', '0', '1')[2]
    if not moment then
      place = nil
      return
    end
    if moment ~= rank then rank, seq = moment, '' end
    local members = {}
    for _, lease in ipairs(call('ZRANGEBYSCORE', LEASED, moment, moment)) do
      local held, _, read = L().held_by(lease)
      looked = looked + floor(read / 8)
      for i, text in ipairs(each('HMGET', RECORDS, held)) do
        local at = text and place_of(text, ALIVE)
        if at and at > seq then members[#members + 1] = at .. held[i] end
      end
    end
    table.sort(members)
    for _, member in ipairs(members) do
      if #ids == limit then return end
      looked = looked + 1
      local id = sub(member, SEQ + 1)
      if not add(id, call('HGET', RECORDS, id)) then return end
      place = {moment, sub(member, 1, SEQ)}
    end
    place = {moment, 'fffffffffffff'}
    seq = ''
  end
end

if which == 'all' then all()
elseif which == 'group' then of_group()
elseif which == 'leased' then of_leases()
else of_set(ENDED[which] or ({delayed = DELAYED, ready = READY})[which]) end
return {cjson.encode({now, place or null, full}), ids, texts, marks}
