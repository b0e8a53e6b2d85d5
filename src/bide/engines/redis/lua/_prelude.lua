-- The prelude of every script: its keys, its arguments, the clock, the settings of the queue, and the
-- replay of a reply that was lost.
--
-- KEYS, all of one shard of one queue (see keys.py):
--   1 meta     hash: counters, settings, who leads the waiters
--   2 records  hash: id -> record, see _records.lua
--   3 delayed  4 ready  5 dead  6 kept: sorted sets, rank -> order of putting .. id
--   7 leases   hash: id -> "order size token until holder"
--   8 leased   sorted set: until -> order .. id
--   9 groups   sorted set, every score is 0: group, \1, order .. id
--  10 waiters  sorted set: since when -> lane, a client that waits for messages
--  11 try      string: mark and reply of the last change of the calling lane at this place of a pipeline
-- ARGV, the first ones of every script:
--   1 now      Unix milliseconds, or empty: the clock of the server
--   2 mark     number of this call in its lane; ? in front: the call may have been executed before;
--              empty: it only reads
--   3 seconds  how long a second try may find its reply
--   4 lane     whose waiting claims are woken over a channel; empty: this lane does not listen
--   5 queue    6 shards: of how many the queue is made; empty: unknown  7 shard: which one this is
-- What follows from 8 on is said in each script.
-- Every reply begins with [now, change: the number of the last change of this shard. Numbers grow by one
-- with each script that changes something, so a smaller one than before tells that changes were lost.
--
-- A function costs time whenever a script runs, though it is not called: what is rarely needed is
-- defined by `records`, `waking` and `ranges` when a script calls these.
local call, sub, find, match = redis.call, string.sub, string.find, string.match
local floor, max, min, concat = math.floor, math.max, math.min, table.concat
local KEYS, ARGV, null = KEYS, ARGV, cjson.null
local META, RECORDS, DELAYED, READY, DEAD, KEPT = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local LEASES, LEASED, GROUPS, WAITERS, TRY = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local MARK, LANE, QUEUE, SHARDS, SHARD = ARGV[2], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local STRIPE = 4398046511104  -- 2^42: ready is ordered by priority, then by due
local ORDER = 12              -- digits of the order of putting, in front of each id
local LENGTH = 10             -- digits of the size of a leased message: bytes of id and record

-- Stores a reply under the mark of this call, and returns it. WAIT behind a replay waits for this.
local function remember(reply)
  call('SET', TRY, MARK .. ' ' .. reply, 'EX', ARGV[3])
  return reply
end

local replayed
if sub(MARK, 1, 1) == '?' then
  MARK = sub(MARK, 2)
  local known = call('GET', TRY)
  if known and sub(known, 1, #MARK + 1) == MARK .. ' ' then
    replayed = remember(sub(known, #MARK + 2))
    if sub(replayed, 1, 6) ~= 'lease ' then return replayed end  -- a claim tells its messages again
  end
end

local now, part = tonumber(ARGV[1]), 0  -- milliseconds, and the part of one that has passed
if not now then
  local time = call('TIME')
  now, part = time[1] * 1000 + floor(time[2] / 1000), time[2] % 1000 / 1000
end

local function int(value)
  return string.format('%d', value)
end

-- Flags of a queue, a letter each: p paused, k some messages are kept, w some have a priority, g some
-- are in groups, e some expire, l some lanes wait.
local meta = call('HMGET', META, 'token', 'flags', 'seq', 'keep', 'shards', 'change', 'leader', 'lead_at')
local exists, flags = meta[1] ~= false, meta[2] or ''
local seq, keep, change = tonumber(meta[3] or 0), tonumber(meta[4] or 0), tonumber(meta[6] or 0)
if exists and SHARDS and tonumber(meta[5]) ~= SHARDS then
  return redis.error_reply('SHARDS ' .. meta[5])
end

local function has(letter)
  return find(flags, letter, 1, true) ~= nil
end

local function flag(letter, is)
  if is == has(letter) then return end
  flags = is and flags .. letter or string.gsub(flags, letter, '')
  call('HSET', META, 'flags', flags)
end

local made = false
local function make()
  if exists then return end
  exists, made = true, true
  call('PERSIST', META)  -- it may have been deleted a while ago
  call('HSET', META, 'token', int(now), 'flags', flags, 'seq', '0', 'keep', '0', 'shards', SHARDS)
end

-- Gives this change its number, and sets a field of meta with it.
local function advance(field, value)
  if not exists then return end
  change = change + 1
  if field then return call('HSET', META, 'change', int(change), field, value) end
  call('HSET', META, 'change', int(change))
end

local tally = {}
local function count(name, times)
  tally[name] = (tally[name] or 0) + (times or 1)
end

-- Returns a reply in JSON, of the values that follow `now` and `change`.
local function json(values)
  return '[' .. int(now) .. ',' .. int(change) .. ',' .. values .. ']'
end

local function write_counts()
  for name, times in pairs(tally) do call('HINCRBY', META, name, times) end
end

-- Ends a change: writes the counters, and remembers the reply.
local function finish(values)
  write_counts()
  return remember(json(values))
end
