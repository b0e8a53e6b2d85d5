-- find: look at messages by id.
--   room  how large the reply may become
-- ARGV from 3 on: ids
-- Reply: [head, records, leases]: of the first ids, for which there is room; false where there is none
define('find', {'no-writes'}, {}, function(room)
  local texts, leases, some = {}, {}, false
  for i = 3, #ARGV do
    local text = call('HGET', RECORDS, ARGV[i])
    room = room - (text and #text or 0)
    if text and some and room < 0 then break end
    some = some or text ~= false
    texts[i - 2], leases[i - 2] = text, call('HGET', LEASES, ARGV[i])
  end
  return {answer(), texts, leases}
end)

-- count: the number of messages in each state, and the counters of what happened to all others.
-- Reply: [now, change, delayed, ready, leased, dead, kept, paused (its end, or true without one), keep,
--   oldest or null, strays, counters, [history, result_ttl, how many groups are closed, overdue],
--   [limit, rate, group_limit, group_rate]]

define('count', {'no-writes'}, {'keep', 'seq', 'put', 'acked'}, function()
  local delayed, ready, leased, dead, kept, due = sizes()
  local oldest
  if due > 0 then oldest = due_of_rank(call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]) end
  for _, range in ipairs(ready > 0 and ranges('ready') or {}) do  -- the first of each is its oldest
    local first = call('ZRANGEBYSCORE', READY, int(range[2]), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] % STRIPE
    oldest = min(oldest or first, first)
  end
  -- Each message has one record and one place; a lease is in two of them.
  local strays = math.abs(call('HLEN', RECORDS) - delayed - ready - leased - dead - kept)
    + math.abs(leased - call('ZCARD', LEASED)) + (limited and count_lines(ready, leased) or 0)
  local counters = call('HMGET', META, 'put', 'acked', 'cancelled', 'expired', 'purged', 'died',
    'revived', 'retried', 'lapsed', 'moved')
  for i, value in ipairs(counters) do counters[i] = tonumber(value or 0) end
  read_ends_settings()
  return answer(delayed - due, ready + due, leased, dead, kept, has('p') and (pause_end or true), numbers.keep,
    oldest or null, strays, counters,
    {history, results, call('ZCOUNT', CLOSED, '(' .. int(now), '+inf'), call('HGET', META, 'overdue') or ''},
    {limits_now()})
end)

-- audit: check the places of messages, a slice at a time, of AUDITED or about AUDITED_BYTES: each has a record that
-- agrees with its place, and is in no other place. Adds up their bytes.
--   set     its number, from 1 on; 5: ends
--   offset  in it
-- Reply: [now, change, strays, set or null, offset, bytes]
local bytes  -- of what this call has looked at

-- Returns the rank in a set, by its number, that the record or the lease of a message says.
local function rank_in(set, r, lease)
  if set == 1 then return delayed_rank(r.due, r.priority) end
  if set == 2 then return ready_rank(r.due, r.priority) end
  if set == 3 then return lease.order == r.order and lease.until_ end
  return r.ended and BASE[r.state] + r.ended
end

-- Returns whether a member of a set, by its number, is where its record and lease say, and nowhere else.
local function is_sound(sets, set, member, rank)
  local id = sub(member, ORDER + 1)
  local text = call('HGET', RECORDS, id)
  if not text then return false end
  bytes = bytes + #id + #text
  local r = parse(id, text)
  local held = call('HGET', LEASES, id)
  local lease = read_lease(held) or {}
  held, bytes = held ~= false, bytes + #(lease.successor or '')
  if not r or r.member ~= member or held ~= (set == 3) or (r.state ~= nil) ~= (set == 4) then return false end
  if rank_in(set, r, lease) ~= rank then return false end
  for other, key in ipairs(sets) do
    if other ~= set and call('ZSCORE', key, member) then return false end
  end
  if limited and set < 4 and set > 1 and not is_in_line(r, held) then return false end
  return r.group == '' or call('ZSCORE', GROUPS, r.group .. '\1' .. member) ~= false
end

-- Adds up the bytes of the ends that are remembered, of up to AUDITED ids from an offset on; returns of how many ids.
local function weigh_ends(offset)
  local ids = call('ZRANGE', ENDINGS, offset, offset + AUDITED - 1)
  for _, id in ipairs(ids) do bytes = bytes + #id + call('HSTRLEN', ENDED, id) end
  return #ids
end

define('audit', {'no-writes'}, {}, function(set, offset)
  local sets = {DELAYED, READY, LEASED, KEPT}
  local strays, quota = 0, AUDITED
  bytes = 0
  if set == 5 then
    local n = weigh_ends(offset)
    return answer(0, n == AUDITED and 5 or null, offset + n, bytes)
  end
  while sets[set] and quota > 0 do
    local members, n = call('ZRANGE', sets[set], offset, offset + quota - 1, 'WITHSCORES'), 0
    while n < #members / 2 and bytes < AUDITED_BYTES do
      if not is_sound(sets, set, members[2 * n + 1], tonumber(members[2 * n + 2])) then strays = strays + 1 end
      n = n + 1
    end
    if #members < 2 * quota and n == #members / 2 then set, offset = set + 1, 0 else offset = offset + n end
    quota = bytes < AUDITED_BYTES and quota - n or 0
  end
  return answer(strays, sets[set] and set or has('h') and 5 or null, offset, bytes)
end)

-- forecast: how many messages fall due when.
--   bucket   milliseconds
--   buckets  how many
-- Reply: [now, change, start, due before it, [how many in each], due after]
-- Buckets of an hour or more begin on whole hours; the first one counts only what is not yet due.
define('forecast', {'no-writes'}, {}, function(bucket, buckets)
  local start = bucket < HOUR_MS and now or now - now % HOUR_MS
  -- Returns how many delayed messages are due before a time.
  local function due_before(moment) return call('ZCOUNT', DELAYED, '-inf', int(delayed_reach(moment - 1))) end
  local first = due_before(now + 1)
  local last, counts = first, {}
  for i = 1, buckets do
    local reached = due_before(start + bucket * i)
    counts[i], last = reached - last, reached
  end
  return answer(start, call('ZCARD', READY) + first, counts, call('ZCARD', DELAYED) - last)
end)

-- explain: why a message is where it is.
--   id  or empty
-- Reply: [head, record or nothing, lease or empty]; head is:
--   [now, change, paused, pauses, how many messages of this shard are delivered before it or null, its
--   order in this shard or null, the limit that holds it back or null: see _limits.lua]
local MOST = BULK + 1  -- more are not counted

-- Returns how many messages of this shard are delivered before a place in the order of delivery; MOST if they are
-- more, or if so many are due that `member`, which is at that place if it is of this shard, is not among those that
-- are looked at. In a limited queue those of its group count.
local function before(rank, order, member, group)
  local count
  if limited then
    count = call('ZLEXCOUNT', LINES, '[' .. line_at(group, 0, ''), '(' .. line_at(group, rank, member))
  else
    count = call('ZCOUNT', READY, '-inf', '(' .. int(rank))
    for _, tie in ipairs(call('ZRANGEBYSCORE', READY, int(rank), int(rank), 'LIMIT', 0, MOST)) do
      if sub(tie, 1, ORDER) < order then count = count + 1 end
    end
  end
  local due = call('ZRANGEBYSCORE', DELAYED, '-inf', due_by_now(), 'WITHSCORES', 'LIMIT', 0, PROMOTE)
  local seen = member == nil or #due < 2 * PROMOTE or call('ZSCORE', READY, member) ~= false
  local members = {}
  for i = 1, #due, 2 do members[#members + 1] = due[i] end
  local groups = limited and groups_of(members)
  for i = 1, #due, 2 do
    local as_ready = rank_when_ready(tonumber(due[i + 1]))
    local counts = not groups or groups[(i + 1) / 2] == group
    if counts and (as_ready < rank or as_ready == rank and sub(due[i], 1, ORDER) < order) then count = count + 1 end
    seen = seen or due[i] == member
  end
  return seen and min(count, MOST) or MOST
end

define('explain', {'no-writes'}, {}, function(id)
  local text, lease = call('HGET', RECORDS, id), call('HGET', LEASES, id)
  local ahead, order, limit
  if text then
    local r = parse(id, text)
    if r and not (r.state or lease) and r.due <= now then
      ahead = before(ready_rank(r.due, r.priority), r.order, r.member, r.group)
      order, limit = r.order, limited and held_by(r.group)
    end
  end
  return {answer(has('p'), read_pauses(), ahead or null, order or null, limit or null), text, lease or ''}
end)

-- ahead: how many messages of this shard are delivered before a place in the order of delivery.
-- Reply: [now, change, count]
define('ahead', {'no-writes'}, {}, function(rank, order) return answer(before(rank, order)) end)

-- history: look at how messages with an id have ended.
-- watch: the same; and for a minute, tell the calling lane of every end in this queue.
-- Reply: [head, ends or nothing]; head is [now, change, state or null, history, result_ttl]
local WATCHED = MINUTE_MS

-- Returns the reply of `history`.
local function look(id)
  local state = null  -- of the message with this id that is there now
  local text = call('HGET', RECORDS, id)
  if text then
    local r = parse(id, text) or {state = 'dead', failures = {}}
    local lease = read_lease(call('HGET', LEASES, id))
    local held = lease and lease.order == r.order
    state = r.state or held and 'leased' or (r.due <= now or call('ZSCORE', READY, r.member)) and 'ready'
      or 'delayed'
    local last = r.failures[#r.failures]
    if state == 'dead' and last and find(last[4], '^in transit by bide ') then
      state = 'delayed'  -- as it will be: a move or import has it under way
    end
  end
  local ends = false
  if has('h') then
    read_ends_settings()
    ends = call('HGET', ENDED, id)
  end
  return {answer(state, history or 0, results or 0), ends}
end

define('history', {'no-writes'}, {}, look)

define('watch', {'allow-oom'}, {}, function(id)
  if exists and LANE ~= '' then
    local watchers = {LANE .. ' ' .. int(now + WATCHED)}
    for lane, until_ in string.gmatch(call('HGET', META, 'watchers') or '', '(%S+) (%d+)') do
      if lane ~= LANE and tonumber(until_) > now then watchers[#watchers + 1] = lane .. ' ' .. until_ end
    end
    call('HSET', META, 'watchers', concat(watchers, ' '))
  end
  return look(id)
end)

local behind_member
do
-- Returns whether a text comes after another one, by their bytes: for Lua, the server's locale decides.
local function comes_after(text, other)
  for i = 1, min(#text, #other) do
    local byte, other_byte = string.byte(text, i), string.byte(other, i)
    if byte ~= other_byte then return byte > other_byte end
  end
  return #text > #other
end

-- Returns the place of the first member of a sorted set behind a score, and among the members of this score behind
-- one that need not be there: halves the range of equal scores until it is found.
function behind_member(set, score, member)
  local low, high = call('ZCOUNT', set, '-inf', '(' .. int(score)), call('ZCOUNT', set, '-inf', int(score))
  while low < high do
    local middle = floor((low + high) / 2)
    if comes_after(call('ZRANGE', set, middle, middle)[1], member) then high = middle else low = middle + 1 end
  end
  return low
end
end

-- closed_groups: list closed groups, in the order in which they open.
--   after, group  those that come after this one, which may be open meanwhile
--   limit
-- Reply: [now, change, [group, until when, ...]]
define('closed_groups', {'no-writes'}, {}, function(after, group, limit)
  if after <= now then after, group = now + 1, '' end
  local low = behind_member(CLOSED, after, group)
  return answer(call('ZRANGE', CLOSED, low, low + limit - 1, 'WITHSCORES'))
end)

-- list_ended: ids with their last ends, in the order of these, a slice at a time.
--   how          only those that ended so, or nil
--   first, before  from when to before when they ended
--   moment, id   place behind which to go on
--   limit, most  how many, and how many to look at
--   room         how large the reply may become
-- Reply: [head, ids, ends, moments]; head is [now, change, place or null]; place is the moment and the id behind
--   which the next slice goes on; an end has no result, and is empty if it cannot be read

-- Returns the last end of an id without its result, or nil if it cannot be read; and how many bytes were read.
local function last_end(id)
  local text = call('HGET', ENDED, id) or ''
  local readable, ends = pcall(cmsgpack.unpack, text)
  local last = readable and type(ends) == 'table' and ends[1]
  if type(last) ~= 'table' then return nil, #text end
  last[8] = false
  return last, #text
end

define('list_ended', {'no-writes'}, {}, function(how, first, before, moment, id, limit, most, room)
  if not has('h') then return {answer(null), {}, {}, {}} end
  read_ends_settings()
  first = max(first, now - ends_kept() + 1)
  if first > moment then moment, id = first, '' end
  local at = behind_member(ENDINGS, moment, id)
  local slice = how and most or min(limit, most)
  local members = call('ZRANGE', ENDINGS, at, at + slice - 1, 'WITHSCORES')
  local ids, texts, moments, size = {}, {}, {}, 0
  local place = null  -- of the last member that this slice is through with
  for i = 1, #members, 2 do
    local member, score = members[i], members[i + 1]
    if tonumber(score) >= before then return {answer(null), ids, texts, moments} end
    local last, read = last_end(member)
    size = size + read
    if not last or not how or last[2] == how then
      local text = last and pack(last) or ''
      if #ids > 0 and #text + #member > room then return {answer(place), ids, texts, moments} end
      room = room - #text - #member
      ids[#ids + 1], texts[#texts + 1], moments[#moments + 1] = member, text, score
    end
    place = {score, member}
    if #ids == limit or size > AUDITED_BYTES then return {answer(place), ids, texts, moments} end
  end
  return {answer(#members == 2 * slice and place or null), ids, texts, moments}
end)
