-- The order of puts, for who looks at all messages: in it stands every id, by its number seq. A
-- number is ten hexadecimal digits, which are the name of a chunk, and three, the place in it.
--   order  sorted set, score: the chunk; a text of lines: name, what all its ids begin with, and
--          a line each: the rest of an id, or \1 and how many places are empty
--   alive  hash: name -> 1024 * of how many the chunk tells + how many of them are still there
--   tail   string: lines, a whole id each, of the last chunk while it is short
-- Many messages that are put together have a chunk of their own, whose lines the client makes.
-- A chunk goes when its last message goes. When most of what stands here is about nothing, each
-- deletion also looks into a chunk, in turn, and writes what is left of it.

local PLACES, LONG = 4096, 64
local put, seq, open = tonumber(meta[3] or 0), tonumber(meta[4] or 0), tonumber(meta[5] or 0)

local function name_of(chunk)
  return string.format('%010x', chunk)
end

-- Calls `with` for each line of a text: its place, and the line.
local function walk(text, place, with)
  for line in string.gmatch(text, '([^\n]*)\n') do
    if byte(line) == 1 then
      place = place + sub(line, 2)
    else
      with(place, line)
      place = place + 1
    end
  end
end

-- Returns the lines of ids at places, what they all begin with in front.
local function lines_of(places, ids)
  local first = ids[1] or ''
  local long = #first
  for _, id in ipairs(ids) do
    while sub(id, 1, long) ~= sub(first, 1, long) do
      long = floor(long / 2)
    end
  end
  local lines, place = {sub(first, 1, long)}, 0
  for i, id in ipairs(ids) do
    if places[i] > place then lines[#lines + 1] = '\1' .. places[i] - place end
    lines[#lines + 1] = sub(id, long + 1)
    place = places[i] + 1
  end
  return concat(lines, '\n') .. '\n'
end

-- Makes a chunk of the tail; what is put next goes to a new one.
local function seal()
  local chunk = floor(seq / PLACES)
  local name = name_of(chunk)
  local places, ids = {}, {}
  walk(call('GET', TAIL), 0, function(place, id)
    places[#places + 1], ids[#ids + 1] = place, id
  end)
  if call('HINCRBY', ALIVE, name, open * 1025) % 1024 == 0 then
    call('HDEL', ALIVE, name)
  else
    call('ZADD', ORDER, chunk, name .. '\n' .. lines_of(places, ids))
    call('HINCRBY', META, 'listed', open)
  end
  call('DEL', TAIL)
  seq, open = (chunk + 1) * PLACES, 0
end

-- Returns the name of the chunk and the place in it of the first of so many that are put next.
-- Its number is `least` or more; the last one's is behind by `span` - 1.
local function room(total, span, least)
  local first = math.max(seq, least or 0)
  if open > 0 and (total >= LONG or first >= (floor(seq / PLACES) + 1) * PLACES) then
    seal()
    first = math.max(seq, first)
  end
  if first % PLACES + span > PLACES then
    if open > 0 then seal() end
    first = math.max(seq, (floor(first / PLACES) + 1) * PLACES)
  end
  local chunk = floor(first / PLACES)
  return name_of(chunk), first - chunk * PLACES
end

-- Writes down those for whom there is room.
-- `lines` are theirs, as they stand in `order` if they are many, else as in `tail`.
local function list(total, span, name, place, lines)
  local chunk = tonumber(name, 16)
  put = put + total
  if total >= LONG then
    if place > 0 then lines = string.gsub(lines, '\n', '\n\1' .. place .. '\n', 1) end
    call('ZADD', ORDER, chunk, name .. '\n' .. lines)
    call('HSET', ALIVE, name, total * 1025)
    call('HINCRBY', META, 'listed', total)
    seq = (chunk + 1) * PLACES
  else
    local gap = chunk * PLACES + place - (open > 0 and seq or chunk * PLACES)
    call('APPEND', TAIL, gap > 0 and '\1' .. gap .. '\n' .. lines or lines)
    open = open + total
    seq = chunk * PLACES + place + span
    if open >= LONG then seal() end
  end
  call('HSET', META, 'put', put, 'seq', number(seq), 'open', open)
end

-- Returns the lines of ids; they follow each other if it is not said at which places they stand.
local function lines_for(ids, places)
  if #ids < LONG and not places then return concat(ids, '\n') .. '\n' end
  if not places then
    places = {}
    for i = 1, #ids do places[i] = i - 1 end
  end
  local lines = lines_of(places, ids)
  if #ids >= LONG then return lines end
  local first = string.match(lines, '^[^\n]*')  -- what all begin with stands in each line there
  return (string.gsub(sub(lines, #first + 2), '[^\n]*\n', function(line)
    return byte(line) == 1 and line or first .. line
  end))
end

-- Returns the ids that a chunk tells of, and what seq each has.
local function told_by(name, prefix, lines)
  local ids, seqs = {}, {}
  walk(lines, 0, function(place, rest)
    ids[#ids + 1] = prefix .. rest
    seqs[#seqs + 1] = name .. string.format('%03x', place)
  end)
  return ids, seqs
end

local function told_by_text(text)
  return told_by(string.match(text, '^(%x+)\n([^\n]*)\n(.*)$'))
end

-- Writes a chunk anew, with what is left of it.
local function shorten(text)
  local ids, seqs = told_by_text(text)
  local name, stands, left = sub(text, 1, 10), {}, {}
  for i, id in ipairs(ids) do left[i] = seqs[i] .. id end
  for _, set in ipairs({DELAYED, READY, LEASED, ENDED.dead, ENDED.acked, ENDED.expired}) do
    local missing = {}
    for i, score in ipairs(each('ZMSCORE', set, left)) do
      if score then stands[left[i]] = true else missing[#missing + 1] = left[i] end
    end
    left = missing
  end
  local places, kept = {}, {}
  for i, id in ipairs(ids) do
    if stands[seqs[i] .. id] then
      places[#places + 1], kept[#kept + 1] = tonumber(sub(seqs[i], 11), 16), id
    end
  end
  local chunk = tonumber(name, 16)
  call('ZREMRANGEBYSCORE', ORDER, chunk, chunk)
  call('ZADD', ORDER, chunk, name .. '\n' .. lines_of(places, kept))
  call('HSET', ALIVE, name, #kept * 1025)
  call('HINCRBY', META, 'listed', #kept - #ids)
end

local function look_at_some(chunks)
  local listed = tonumber(call('HGET', META, 'listed') or 0)
  if listed <= 2 * call('HLEN', RECORDS) + 1024 then return end
  local at = call('HGET', META, 'swept') or '-1'
  local texts = call('ZRANGEBYSCORE', ORDER, '(' .. at, '+inf', 'LIMIT', '0', chunks)
  for _, text in ipairs(texts) do
    local alive = tonumber(call('HGET', ALIVE, sub(text, 1, 10)))
    if alive % 1024 * 2 < floor(alive / 1024) then shorten(text) end
    at = tonumber(sub(text, 1, 10), 16)
  end
  if #texts < chunks then at = '-1' end
  call('HSET', META, 'swept', at)
end

-- Takes from each of several chunks how many messages are gone; returns what is told of it then.
local function take_from(names, parts)
  if #names == 1 then return {call('HINCRBY', ALIVE, names[1], -parts[names[1]])} end
  local told, fields = each('HMGET', ALIVE, names), {}
  for i, name in ipairs(names) do
    told[i] = (told[i] or 0) - parts[name]
    fields[2 * i - 1], fields[2 * i] = name, told[i]
  end
  many('HSET', ALIVE, fields)
  return told
end

-- Says that the messages are gone which were these members of a set.
local function gone(members)
  if #members == 0 then return end
  local parts, names = {}, {}
  for i = 1, #members do
    local name = sub(members[i], 1, 10)
    if not parts[name] then
      parts[name] = 0
      names[#names + 1] = name
    end
    parts[name] = parts[name] + 1
  end
  local over, dropped, sparse = {}, 0, false
  for i, told in ipairs(take_from(names, parts)) do
    local alive, all = told % 1024, floor(told / 1024)
    if told > 0 and alive == 0 then
      local chunk = tonumber(names[i], 16)
      call('ZREMRANGEBYSCORE', ORDER, chunk, chunk)
      over[#over + 1] = names[i]
      dropped = dropped + all
    elseif alive * 4 < all then
      sparse = true
    end
  end
  many('HDEL', ALIVE, over)
  if dropped > 0 then call('HINCRBY', META, 'listed', -dropped) end
  if sparse then look_at_some(math.ceil(#members / 128)) end
end

-- What is remembered for a while only.

local FORGET, EXPIRED_KEEP = 1000, 86400000

local function forget_some()
  local ends = {acked = now - keep, expired = now - math.max(keep, EXPIRED_KEEP)}
  for state, before in pairs(ends) do
    local members = call('ZRANGEBYSCORE', ENDED[state], '-inf', number(before), 'LIMIT', '0', FORGET)
    if #members > 0 then
      local ids = {}
      for i, member in ipairs(members) do ids[i] = sub(member, SEQ + 1) end
      if has('g') then
        many('ZREM', GROUPS, R().grouped(members, each('HMGET', RECORDS, ids)))
      end
      call('ZREM', ENDED[state], unpack(members))
      call('HDEL', RECORDS, unpack(ids))
      gone(members)
    end
  end
end

local function forget()
  if has('k') then forget_some() end
end
