-- Room in the order of puts for what is new.

local LONG, SEALED = 64, 256  -- from how many on there is a chunk of its own, and one of the tail
local put, seq, open = tonumber(meta[3] or 0), tonumber(meta[4] or 0), in_tail()

-- Makes a chunk of the tail; what is put next goes to a new one.
local function seal()
  local chunk = floor(seq / PLACES)
  O().seal(chunk, string.format('%010x', chunk), open)
  put, seq, open = put + open, (chunk + 1) * PLACES, 0
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
  return string.format('%010x', chunk), first - chunk * PLACES
end

-- Writes down those for whom there is room.
-- `lines` are theirs, as they stand in `order` if they are many, else as in `tail`.
-- The number of a chunk is taken before anything stands in it: of half a change, which a server
-- left that died, there is a gap then, never a chunk that another put writes into as well.
local function list(total, span, name, place, lines)
  local chunk = tonumber(name, 16)
  if total >= LONG then
    put, seq = put + total, (chunk + 1) * PLACES
    call('HSET', META, 'put', put, 'seq', number(seq), 'open', open)
    if place > 0 then lines = string.gsub(lines, '\n', '\n\1' .. place .. '\n', 1) end
    call('ZADD', ORDER, chunk, name .. '\n' .. lines)
    call('HSET', ALIVE, name, total * 1025)
    call('HINCRBY', META, 'listed', total)
    return
  end
  local gap = chunk * PLACES + place - (open > 0 and seq or chunk * PLACES)
  call('APPEND', TAIL, gap > 0 and '\1' .. gap .. '\n' .. lines or lines)
  open = open + total
  seq = chunk * PLACES + place + span
  if open >= SEALED then seal() end
  call('HSET', META, 'put', put, 'seq', number(seq), 'open', open)
end
