-- The prelude: what each call begins with, which is its keys, its arguments, the clock, the settings of
-- the queue, and the replay of a reply that was lost.
--
-- KEYS, all of one shard of one queue (see layout.py):
--   1 meta     hash: counters and settings
--   2 records  hash: id -> record, see _records.lua
--   3 delayed  4 ready  5 kept (dead letters too): sorted sets, rank -> order of putting .. id
--   6 leases   hash: id -> lease, see _records.lua
--   7 leased   sorted set: until -> order .. id
--   8 groups   sorted set, every score is 0: group, \1, order .. id
--   9 waiters  sorted set: when it claims -> lane, a client that waits for messages, see _waking.lua
--  10 ended    hash: id -> how messages of this id ended, see _records.lua
--  11 endings  sorted set: when the last of them ended -> id
--  12 lines  13 heads: sorted sets, every score is 0; 14 tags: hash; of a limited queue, see _limits.lua
--  15 forwarded  sorted set, every score is 0: outbox, /, row; see the end of this file
--  16 returns  sorted set: number of the change -> order .. id, a message that has gone to an earlier set, or
--     to an earlier place in its set; the last ones, for scans that are under way
--  17 turns  18 shares: what an older bide has instead of 13 and 14, see `take_over` in claim.lua
--  19 closed   sorted set: when it opens again -> group that is closed
--  20 try      string: mark and reply of the last change of the calling lane at this place of a pipeline
--     sent     of a command that its sender may send again, instead: hash: batch, the number of the last one of
--              this sender; size, of what is kept; noted, its score in senders; place of the call in it -> its reply
--  21 senders  only then; sorted set: when it sent -> key of its replies, of all senders of one owner
-- ARGV, the first ones of every function:
--   1 number of this call on its connection, and in its lane: by it a second try, which has a ? before it, finds
--     the reply to the first one. Of a command that its sender may send again follow the number of its batch,
--     1 if it was sent before, and the place of this call in the batch
--   2 values in MessagePack, one behind the other, 15 at most:
--     seconds  for how long a second try finds the reply; 0: the call only reads
--     shards   of how many the queue is made; a call is refused (SHARDS) if it is made of another number, a put
--              also, and a change of settings, if this shard is not there
--     lane     whose waiting claims are woken over a channel; empty: this lane does not listen
--     given    Unix milliseconds, or nil: the clock of the server
--     and the parameters of each function; what follows in ARGV is said there
-- Replies are in MessagePack, behind the number of the call and a blank, by which the caller knows that it
-- reads the reply to this call; of those that bring records, so is the head. They begin with [now, change:
-- the number of the last change of this shard; of one that does not exist, below 0, or 0 if nothing is known.
-- Numbers grow by one with each call that changes something, so a smaller one than before tells that changes
-- were lost.
--
-- The server runs this text once, when the library is loaded. `define` makes a function, and `run`
-- sets these variables at each call. What a call makes anew, such as a table, takes the server longer than
-- most commands do: so no call makes a function, and none makes a table before it needs one.
-- Names in capitals that no file sets, such as PROMOTE, are those of constants.py.
local call, sub, find, match, format, floor, ceil, max, min, concat
local null, tonumber, unpack, ipairs, pairs, pack
local NO_SHARD = {err = 'SHARDS 0'}
local READ = 64  -- records at once, each of up to a megabyte

local ARGV
local META, RECORDS, DELAYED, READY, KEPT, LEASES, LEASED, GROUPS, WAITERS, ENDED, ENDINGS
local LINES, HEADS, TAGS, FORWARDED, RETURNS, OLD_TURNS, OLD_SHARES, CLOSED, TRY
local SHARDS, LANE
local given  -- the time that the caller gave, or nil
local now, part  -- milliseconds, and the part of one that has passed
local exists, flags, change
local pause_end  -- of a paused queue, when that ends by itself, or nil
local numbers  -- others of META, by their names: those that a function reads, see `define`
local replayed
local died  -- [id, attempts, last holder] of each message whose lease was over once too often
local forget, forget_ends, repair  -- see _records.lua
local closing = {}  -- functions about closed groups, see _records.lua; one name for all, since there is room for 200
local limited  -- whether the queue has limits; what they need to know, see _limits.lua
local read_limits, find_line, enter_line, leave_line, drop_line, begin_change, end_change
local actor  -- who gave the command, if it says so
local rows   -- of the call at hand, the member of each message in FORWARDED; nil: it is not from an outbox

-- Looks up functions that do not exist yet while the library is loaded.
local function prepare()
  call, sub, find, match, format = redis.call, string.sub, string.find, string.match, string.format
  floor, ceil, max, min, concat, null = math.floor, math.ceil, math.max, math.min, table.concat, cjson.null
  tonumber, unpack, ipairs, pairs, pack = _G.tonumber, _G.unpack, _G.ipairs, _G.pairs, cmsgpack.pack
end

-- Returns the name of the queue, and the number of this shard.
local function names() return match(META, '^bide:{(.*)#(%d+)}:meta$') end

-- Returns a whole number as text; Lua itself writes large ones with an exponent.
local function int(value) return format('%d', value) end

-- Returns whether the queue has a flag. Flags are a letter each: p paused, k some messages are kept, w some have a priority, g some
-- are in groups, e some expire, l some lanes wait, h it remembers ends, n it has limits, c some groups are closed.
local function has(letter) return flags ~= '' and find(flags, letter, 1, true) ~= nil end

-- Sets a flag of the queue, or removes it.
local function flag(letter, is)
  if is == has(letter) then return end
  flags = is and flags .. letter or string.gsub(flags, letter, '')
  call('HSET', META, 'flags', flags)
end

local function read_pauses() return cjson.decode(call('HGET', META, 'pauses') or '[]') end

-- Reads when the pause of a queue ends by itself. If it has, the queue is not paused any more.
local function read_pause(writes)
  local pauses = read_pauses()
  local last = pauses[#pauses]
  pause_end = last and last[2] ~= null and last[2] or nil
  if not pause_end or pause_end > now then return end
  pause_end = nil
  if writes then flag('p', false) else flags = string.gsub(flags, 'p', '') end
end

-- Lets the keys of a queue that does not exist expire. Until then the number of changes goes on, so clients see
-- that a deleted queue was not lost; and a put finds the lanes that wait. A token may be ahead of the clock, from
-- which a queue begins of which nothing is left: so it is kept until the clock has passed it.
local function expire_keys()
  local last_token = tonumber(call('HGET', META, 'last_token') or 0)
  local seconds = ceil(max(DELETED_KEEP, last_token - now) / SECOND_MS)
  for _, key in ipairs({META, WAITERS}) do call('EXPIRE', key, seconds) end
end

-- Returns how many dead letters this shard has: they are the last ones of KEPT, see _records.lua.
local function count_dead() return call('ZCOUNT', KEPT, int(2 * STRIPE), '+inf') end

local define, make, set, advance, count, write_meta, remember, answer, answer_again, finish
do
local NUMBER
local before  -- what the last call has read of META
local MARK, SECONDS  -- the number of a call that may change something; for how long its reply is remembered
local advanced  -- whether this call has given its change a number
local fields, filled = {}, 0  -- of META, what `write_meta` sets: name, value, name, value ...; how many of these count
local tally  -- counters of META that were not read: what it adds to each; nil: nothing

-- Sets a field of META when the call ends: all of them at once.
function set(name, value)
  local at = 1
  while at < filled and fields[at] ~= name do at = at + 2 end
  fields[at], fields[at + 1], filled = name, int(value), max(filled, at + 1)
end

-- Gives this change its number, if it has none yet.
function advance()
  if advanced or not exists then return end
  advanced, change = true, change + 1
  set('change', change)
end

-- Makes this shard. If its messages are there and META was lost, counters begin again.
function make()
  exists = true
  for _, key in ipairs({META, WAITERS}) do call('PERSIST', key) end
  advance()
  local token = max(now, tonumber(call('HGET', META, 'last_token') or 0))
  call('HSET', META, 'change', int(change), 'token', int(token), 'flags', flags, 'seq', '0', 'keep', '0', 'shards', int(SHARDS))
  if call('EXISTS', CLOSED) == 1 then flag('c', true) end  -- META was lost
  if call('EXISTS', RECORDS) == 0 then return end
  -- META was lost, the messages were not. What is there counts as put; numbers go on from the time, which is
  -- larger than any that was given; and the flags are those of a queue that has everything.
  call('DEL', RETURNS)
  local present = call('ZCARD', DELAYED) + call('ZCARD', READY) + call('HLEN', LEASES) + count_dead()
  for letter in string.gmatch('wge', '%a') do flag(letter, true) end
  for name, value in pairs({token = token, seq = now, put = present}) do
    if numbers[name] then numbers[name] = value end
  end
  call('HSET', META, 'put', int(present), 'seq', int(now))
end

-- Adds `times`, or 1, to a counter of META when the call ends.
function count(name, times)
  times = times or 1
  if numbers[name] then
    numbers[name] = numbers[name] + times
    set(name, numbers[name])
  else
    tally = tally or {}
    tally[name] = (tally[name] or 0) + times
  end
end

-- Writes to META what `set` and `count` have collected.
function write_meta()
  if filled > 0 then call('HSET', META, unpack(fields, 1, filled)) end
  if tally then
    for name, times in pairs(tally) do call('HINCRBY', META, name, times) end
  end
end

-- Commands that their senders may send again: the rules, and the reasons of these limits, are in
-- bide.engines.repetition. What cannot be told is refused with REPETITION.
local NOTE = MINUTE_MS  -- a sender stays so long where it is among those of its owner, which are costly to keep
local KEEP = SENDER_KEEP + NOTE
local SENDERS
local batch, last  -- numbers of this batch, nil: this is no such command; of the last batch of the sender, nil: not known
local place, kept_size  -- place of this call in its batch; bytes that are kept of the batch
local noted, known  -- when the sender was noted among those of its owner, or nil; whether `place` has a reply

-- Returns the reply to this call if its sender has sent it before; nil: execute it; nil, error: whether it was
-- executed cannot be told. `words`: the first argument, see ARGV.
local function recall(words)
  local repeated
  NUMBER, batch, repeated, place = match(words, '^%??(%d+) (%d+) (%d) (%S+)$')
  local kept_batch, size, kept_noted, reply = unpack(call('HMGET', TRY, 'batch', 'size', 'noted', place))
  batch, last, noted, known = tonumber(batch), tonumber(kept_batch or ''), tonumber(kept_noted or ''), reply ~= false
  kept_size = 0
  if not last then return nil, repeated == '1' and {err = 'REPETITION forgotten'} end
  if batch < last then return nil, {err = 'REPETITION late'} end
  if batch > last then return end
  kept_size = tonumber(size)
  if reply then call('EXPIRE', TRY, KEEP / SECOND_MS) end
  if reply == '' then return nil, {err = 'REPETITION large'} end
  return reply or nil
end

-- Notes when the sender has sent; forgets those of its owner that have not for long, and the oldest of too many.
local function note_sender()
  call('ZREMRANGEBYSCORE', SENDERS, '-inf', int(now - KEEP))
  call('ZADD', SENDERS, int(now), TRY)
  call('EXPIRE', SENDERS, KEEP / SECOND_MS)
  if call('ZCARD', SENDERS) <= MAX_SENDERS then return end
  local oldest = call('ZRANGE', SENDERS, 0, 0)[1]
  call('ZREM', SENDERS, oldest)
  call('DEL', oldest)
end

-- Keeps the reply to this call of a command that its sender may send again; '' if it is too large.
local function keep(reply)
  if kept_size + #reply > MAX_KEPT then reply = '' end
  local is_of_batch = last == batch or known and noted and call('HLEN', TRY) == 4  -- else it has replies of the batch before
  local is_noted = noted and noted <= now and now < noted + NOTE  -- lately enough
  if not is_of_batch then call('DEL', TRY) end
  if not is_noted then noted = now end
  call('HSET', TRY, 'batch', int(batch), 'size', int(kept_size + #reply), 'noted', int(noted), place, reply)
  if not (is_of_batch and is_noted) then call('EXPIRE', TRY, KEEP / SECOND_MS) end
  if not is_noted then note_sender() end
end

-- Stores a reply under the mark of this call, and returns it. WAIT behind a replay waits for this.
function remember(reply)
  if not batch then
    call('SET', TRY, MARK .. ' ' .. reply, 'EX', SECONDS)
  elseif not replayed then
    keep(reply)
  end
  return reply
end

local ARRAY = 0x90  -- in MessagePack, the head of an array without elements

-- Returns a reply of up to 13 values that follow `now` and `change`; it writes nothing.
function answer(...)
  return string.char(ARRAY + 2 + select('#', ...)) .. pack(now, exists and change or -change, ...)
end

-- Returns a reply on which a change that follows depends: a sender that sends again gets the same.
function answer_again(...)
  local reply = answer(...)
  return batch and remember(reply) or reply
end

-- Ends a change: writes the counters, remembers the reply of these values, and returns it.
function finish(...)
  if limited then end_change() end
  write_meta()
  return remember(answer(...))
end

-- Returns the reply of the first try of this call, if `kept`, what TRY holds, is that; else nil.
local function read_reply(kept)
  if kept and sub(kept, 1, #MARK + 1) == MARK .. ' ' then return remember(sub(kept, #MARK + 2)) end
end

-- Sets `now` and `part`.
local function read_clock()
  now, part = given, 0
  if given then return end
  local time = call('TIME')
  local seconds, micro = time[1], tonumber(time[2])
  now, part = seconds * SECOND_MS + floor(micro / MICROSECONDS), micro % MICROSECONDS / MICROSECONDS
end

-- Reads META, with the numbers that are named in `reads`; returns an error if the call ends here.
local function read_meta(reads)
  local meta = call('HMGET', META, 'shards', 'flags', 'change', unpack(reads))
  exists, flags, change = meta[1] ~= false, meta[2] or '', tonumber(meta[3] or 0)
  local sound = change
  if reads ~= before then numbers, before = {}, reads end
  for i, name in ipairs(reads) do
    numbers[name] = tonumber(meta[3 + i] or 0)
    sound = sound and numbers[name]
  end
  if not sound then return redis.error_reply('CORRUPT ' .. META) end
  if exists and tonumber(meta[1]) ~= SHARDS then return redis.error_reply('SHARDS ' .. meta[1]) end
end

-- Runs `body`, the function of a verb, and returns its reply. `reads`, `keys`, `args`: see `define`; the next
-- parameter is what `unpack_limit` returns first, then come the values of ARGV 2.
local function run(body, reads, keys, args, _, seconds, shards, lane, moment, ...)
  META, RECORDS, DELAYED, READY, KEPT, LEASES, LEASED, GROUPS, WAITERS, ENDED, ENDINGS,
    LINES, HEADS, TAGS, FORWARDED, RETURNS, OLD_TURNS, OLD_SHARES, CLOSED, TRY = unpack(keys)
  ARGV, NUMBER, SECONDS, SHARDS, LANE, given = args, args[1], seconds, shards, lane, moment
  filled, tally, replayed, actor, advanced = 0, nil, nil, nil, false
  SENDERS, batch = keys[21], nil
  local refusal
  local again = sub(NUMBER, 1, 1) == '?'
  if SENDERS then
    replayed, refusal = recall(NUMBER)
    if refusal then return refusal end
  elseif again then
    NUMBER = sub(NUMBER, 2)
  end
  MARK = SECONDS > 0 and NUMBER
  if again and not SENDERS then replayed = read_reply(call('GET', TRY)) end
  if replayed and sub(replayed, 1, 6) ~= 'lease ' then return replayed end  -- a claim tells its messages again
  read_clock()
  refusal = read_meta(reads)
  if refusal then return refusal end
  if not exists and MARK and call('EXISTS', RECORDS) == 1 then make() end
  pause_end = nil
  if has('p') then read_pause(MARK) end
  limited = has('n')
  if limited then read_limits() end
  if MARK and has('k') then forget() end
  if MARK and has('h') then forget_ends() end
  if MARK and has('c') then closing.forget() end
  return body(...)
end

-- Returns a reply with the number of its call before it; an error has none.
local function numbered(reply)
  if type(reply) == 'string' then return NUMBER .. ' ' .. reply end
  if reply[1] then reply[1] = NUMBER .. ' ' .. reply[1] end
  return reply
end

-- Makes a function of the library. `reads`: the numbers of META that it needs beside those of all. `body` gets the
-- parameters of a call that follow the five of all, and returns the reply.
function define(name, flags, reads, body)
  redis.register_function {
    function_name = NAME .. '_' .. name, flags = flags,
    callback = function(keys, args)
      if not call then prepare() end
      return numbered(run(body, reads, keys, args, cmsgpack.unpack_limit(args[2], 15)))
    end,
  }
end
end

-- rights: which of some commands the user may not use; without one of them, functions would end halfway.
-- Keys may be those of some queues alone: only the one that all users need is looked at.
-- KEYS: none; ARGV: their names
redis.register_function {
  function_name = NAME .. '_rights', flags = {'no-writes'},
  callback = function(_, names)
    local missing = {}
    for _, name in _G.ipairs(names) do
      local place = name == 'PUBLISH' and 'bide:wake:' or 'bide:version'
      if not redis.acl_check_cmd(name, place) then missing[#missing + 1] = name end
    end
    return missing
  end,
}

-- Rows of outboxes: this shard remembers those whose commands it has executed, in FORWARDED.

-- Reads the origin of a call: [outbox, before, [row, ...]], or nil; `before` may be empty. First forgets
-- the rows of the outbox that are smaller than `before`.
local function read_origin(origin)
  rows = nil
  if not origin then return end
  local outbox, before, names = unpack(origin)
  if before ~= '' then
    call('ZREMRANGEBYLEX', FORWARDED, '[' .. outbox .. '/', '(' .. outbox .. '/' .. before)
  end
  rows = {}
  for i, name in ipairs(names) do rows[i] = outbox .. '/' .. name end
end

-- Returns whether the command of the message with this number in the call was executed before: not false, nor nil.
local function is_forwarded(i)
  return call('ZSCORE', FORWARDED, rows[i])
end

-- Remembers rows, whose numbers in the call are the keys of `done`; nil: none.
local function remember_rows(done)
  if not rows then return end
  for i in pairs(done or {}) do call('ZADD', FORWARDED, 0, rows[i]) end
  call('ZREMRANGEBYRANK', FORWARDED, 0, -MAX_FORWARDED - 1)
end
