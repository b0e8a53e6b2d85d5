-- The frame of the verbs, in front of each of them but the lone ones: what they are given, and how
-- they answer.
--
-- KEYS, the same for every verb (see keys.py), all of one shard:
--   1 meta     hash: counters, settings, who leads the waiters
--   2 records  hash: id -> record
--   3 delayed  4 ready  6 dead  7 acked  8 expired: sorted sets, rank -> seq .. id
--   5 leased   sorted set, moment of lapse -> lease, see _leases.lua
--   9 held  10 leases: hashes: who holds what, see _leases.lua
--  11 groups   sorted set, all of score 0: group, \1, seq .. id
--  12 waiters  sorted set: lanes that wait, by the moment since when
--  13 order  14 alive  15 tail: the ids as they were put, see _order.lua
--  16 try      see _mark.lua
-- ARGV, the first ones of every verb:
--   1 now      Unix milliseconds, or empty: the server's clock
--   2 mark     of this call, see _mark.lua
--   3 lane     whose waiting claims are told of by a channel; empty: nobody waits there
--   4 queue    its name; of several shards, behind it: how many (? if unknown), and which this is
--
-- What each call costs is paid by every single message: a call of a command takes a microsecond,
-- a number that has to become a text a quarter of one. So commands are variadic, texts stay texts,
-- and what not every call needs is made only when it is.

local META, RECORDS, DELAYED, READY, LEASED = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local ENDED = {dead = KEYS[6], acked = KEYS[7], expired = KEYS[8]}
local HELD, LEASES, GROUPS, WAITERS = KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local ORDER, ALIVE, TAIL = KEYS[13], KEYS[14], KEYS[15]
local LANE, QUEUE, SHARDS, PLACE = ARGV[3], ARGV[4], 1, 0
local WEIGHT, SEQ, PLACES = 4398046511104, 13, 4096
local null = cjson.null
local floor, concat = math.floor, table.concat

if find(QUEUE, ' ', 1, true) then
  QUEUE, SHARDS, PLACE = string.match(QUEUE, '^(%S+) (%S+) (%d+)$')
  SHARDS, PLACE = tonumber(SHARDS), tonumber(PLACE)
end

local now, part = tonumber(ARGV[1]), 0  -- milliseconds, and the part of one that has gone
if not now then
  local time = call('TIME')
  now, part = time[1] * 1000 + floor(time[2] / 1000), time[2] % 1000 / 1000
end

local function number(value)
  return value and string.format('%d', value) or '-'
end

-- What the queue is like, a letter each: p paused, k messages are remembered, w some have weight,
-- g are in groups, e expire, l lanes wait, s it is made of several shards, t some have tags,
-- h some leases are whole.
local meta = call('HMGET', META, 'token', 'flags', 'put', 'seq', 'open', 'keep', 'shards')
local exists, flags, keep = meta[1] ~= false, meta[2] or '', tonumber(meta[6] or 0)
if exists and SHARDS and tonumber(meta[7] or 1) ~= SHARDS then
  return redis.error_reply('SHARDS ' .. (meta[7] or '1'))
end

-- Returns how many of those that were put stand in the tail, and are not among the counter `put`.
-- There are no gaps in a queue of one shard, whose next number tells it.
local function in_tail()
  return SHARDS == 1 and (meta[4] or 0) % PLACES or tonumber(meta[5] or 0)
end

local function has(letter)
  return find(flags, letter, 1, true) ~= nil
end

local function flag(letter, is)
  if is == has(letter) then return end
  flags = is and flags .. letter or string.gsub(flags, letter, '')
  call('HSET', META, 'flags', flags)
end

local tally = {}
local function count(name, times)
  tally[name] = (tally[name] or 0) + (times or 1)
end

-- Calls a variadic command with parts of a list, each below what unpack can take.
local function many(command, key, list)
  if #list <= 4000 then
    return #list > 0 and call(command, key, unpack(list)) or 0
  end
  local total = 0
  for first = 1, #list, 4000 do
    total = total + call(command, key, unpack(list, first, math.min(first + 3999, #list)))
  end
  return total
end

local function each(command, key, list)
  if #list <= 4000 then
    return #list > 0 and call(command, key, unpack(list)) or {}
  end
  local found = {}
  for first = 1, #list, 4000 do
    for _, value in ipairs(call(command, key, unpack(list, first, math.min(first + 3999, #list)))) do
      found[#found + 1] = value
    end
  end
  return found
end

-- As `many`, to add to a sorted set or a hash. The server keeps small ones as lists that it walks
-- through, until they have grown; with something long in it, one is a table from the start.
local function add(command, key, list)
  local long = #list > 64 and call('EXISTS', key) == 0 and string.rep('\1', 65)
  if long then call(command, key, command == 'ZADD' and '0' or long, long) end
  many(command, key, list)
  if long then call(command == 'ZADD' and 'ZREM' or 'HDEL', key, long) end
end

-- Beginning and end of every change.

local made = '0'
local function make()
  if not exists then
    exists, made = true, '1'
    if SHARDS ~= 1 then flags = flags .. 's' end
    call('HSET', META, 'token', number(now), 'flags', flags, 'put', '0', 'seq', '0', 'open', '0',
      'keep', '0')
    if SHARDS ~= 1 then call('HSET', META, 'shards', SHARDS) end
  end
end

local function tell_counts()
  for name, times in pairs(tally) do call('HINCRBY', META, name, times) end
end

local function finish(reply)
  tell_counts()
  return remember(reply)
end

local function answer(outcomes, last)
  return finish('[' .. number(now) .. ',' .. made .. ',[' .. concat(outcomes, ',') .. ']'
    .. (last and ',' .. number(last) or '') .. ']')
end
