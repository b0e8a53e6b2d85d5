-- The order of puts, for who looks at all messages: in it stands every id, by its number seq. A
-- number is ten hexadecimal digits, which are the name of a chunk, and three, the place in it.
--   order  sorted set, score: the chunk; a text of lines: name, what all its ids begin with, and
--          a line each: the rest of an id, or \1 and how many places are empty
--   alive  hash: name -> 1024 * of how many the chunk tells + how many of them are still there
--   tail   string: lines, a whole id each, of the last chunk while it is short
-- Many messages that are put together have a chunk of their own, whose lines the client makes.
-- A chunk goes when its last message goes. When most of what stands here is about nothing, each
-- deletion also looks into a chunk, in turn, and writes what is left of it.

-- What is seldom needed; O() are the functions.
local function order()
  local o = {}

  -- Calls `with` for each line of a text: its place, and the line.
  local function walk(text, with)
    local place = 0
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
      while sub(id, 1, long) ~= sub(first, 1, long) do long = floor(long / 2) end
    end
    local lines, place = {sub(first, 1, long)}, 0
    for i, id in ipairs(ids) do
      if places[i] > place then lines[#lines + 1] = '\1' .. places[i] - place end
      lines[#lines + 1] = sub(id, long + 1)
      place = places[i] + 1
    end
    return concat(lines, '\n') .. '\n'
  end

  -- Returns the lines of ids that are put: as a chunk has them if it is `long`, else as the tail.
  -- They follow each other if it is not said at which places they stand.
  function o.lines_for(ids, long, places)
    local at, lines, next_place = places or {}, {}, 0
    for i, id in ipairs(ids) do
      at[i] = at[i] or i - 1
      if at[i] > next_place then lines[#lines + 1] = '\1' .. at[i] - next_place end
      lines[#lines + 1] = id
      next_place = at[i] + 1
    end
    return long and lines_of(at, ids) or concat(lines, '\n') .. '\n'
  end

  -- Makes a chunk of the tail, which tells of so many.
  function o.seal(chunk, name, total)
    local tail = '\n' .. (call('GET', TAIL) or '')
    local prefix = string.match(tail, '\n([^\1\n]+)') or ''
    local last = string.match(sub(tail, -600), '^.*\n([^\n]+)\n$') or ''
    local long = 0
    while long < #prefix and byte(prefix, long + 1) == byte(last, long + 1) do long = long + 1 end
    prefix = sub(prefix, 1, long)  -- what these two begin with most have in common
    local lines, found = tail, 0
    while prefix ~= '' and found < total do
      lines, found = string.gsub(tail, '\n' .. string.gsub(prefix, '%W', '%%%0'), '\n')
      if found < total then lines, prefix = tail, sub(prefix, 1, floor(#prefix / 2)) end
    end
    if call('HINCRBY', ALIVE, name, total * 1025) % 1024 == 0 then
      call('HDEL', ALIVE, name)
    else
      call('ZADD', ORDER, chunk, name .. '\n' .. prefix .. lines)
      call('HINCRBY', META, 'listed', total)
    end
    call('DEL', TAIL)
  end

  -- Returns the ids that a chunk or the tail tells of, and what seq each has.
  function o.told_by(name, prefix, lines)
    local ids, seqs = {}, {}
    walk(lines, function(place, rest)
      ids[#ids + 1] = prefix .. rest
      seqs[#seqs + 1] = name .. string.format('%03x', place)
    end)
    return ids, seqs
  end

  function o.told_by_chunk(text)
    return o.told_by(string.match(text, '^(%x+)\n([^\n]*)\n(.*)$'))
  end

  -- Writes a chunk anew, with what is left of it.
  local function shorten(text)
    local ids, seqs = o.told_by_chunk(text)
    local name, stands, left = sub(text, 1, 10), {}, {}
    for i, id in ipairs(ids) do left[i] = seqs[i] .. id end
    for i, mark in ipairs(L().marks_of(ids)) do
      local record = mark and call('HGET', RECORDS, ids[i])
      if record and place_of(record, ALIVE) == seqs[i] then stands[left[i]] = true end
    end
    for _, set in ipairs({DELAYED, READY, ENDED.dead, ENDED.acked, ENDED.expired}) do
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

  function o.look_at_some(chunks)
    local listed = tonumber(call('HGET', META, 'listed') or 0)
    if listed <= 2 * call('HLEN', RECORDS) + 1024 then return end
    local at = call('HGET', META, 'swept') or '-1'
    local texts = call('ZRANGEBYSCORE', ORDER, '(' .. at, '+inf', 'LIMIT', '0', chunks)
    for _, text in ipairs(texts) do
      local alive = tonumber(call('HGET', ALIVE, sub(text, 1, 10)) or 0)
      if alive % 1024 * 2 < floor(alive / 1024) then shorten(text) end
      at = tonumber(sub(text, 1, 10), 16)
    end
    if #texts < chunks then at = '-1' end
    call('HSET', META, 'swept', at)
  end
  return o
end

local made_order
local function O()
  made_order = made_order or order()
  return made_order
end
