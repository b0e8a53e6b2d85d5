-- Ends: what a queue with `history` or `result_ttl` remembers of messages that have ended. Every queue remembers
-- for a while how those ended whose workers were asked to stop.
--
-- Of each id the last ends, the newest first, in MessagePack; an end is
--   [time, how, due, attempt, since, by, failures, result], with false where there is no such value.
local history, results  -- milliseconds

local function read_ends_settings()
  local settings = call('HMGET', META, 'history', 'result_ttl')
  history, results = tonumber(settings[1] or 0), tonumber(settings[2] or 0)
end

-- Remembers how a message ends, if the queue does, and tells the lanes that wait for that; `by` and
-- `result` may be nil.
local function remember_end(r, how, by, result)
  if not (r.stopping or has('h') and max(history, results) > 0) then return end
  if not has('h') then
    flag('h', true)
    read_ends_settings()
  end
  local readable, ends = pcall(cmsgpack.unpack, call('HGET', ENDED, r.id) or '')
  if not readable or type(ends) ~= 'table' then ends = {} end
  local was_held = how == 'acked' or r.stopping
  table.insert(ends, 1, {now, how, r.due, r.attempt, was_held and r.since or false, by or false,
    history > 0 and r.failures or {}, results > 0 and result or false})
  ends[21] = nil
  call('HSET', ENDED, r.id, cmsgpack.pack(ends))
  call('ZADD', ENDINGS, int(now), r.id)
  local may_be_watched = r.stopping or results > 0
  for lane, until_ in string.gmatch(may_be_watched and call('HGET', META, 'watchers') or '', '(%S+) (%d+)') do
    if tonumber(until_) > now then call('PUBLISH', 'bide:wake:' .. lane, names() .. ' end ' .. r.id) end
  end
end

-- For how many milliseconds ends stay that are stored.
local function ends_kept()
  local remembers = max(history, results)
  return remembers > 0 and remembers or STOPPED_KEEP
end

-- Deletes ends that were remembered for long enough, of BULK ids at most.
function forget_ends()
  read_ends_settings()
  local old = call('ZRANGEBYSCORE', ENDINGS, '-inf', int(now - ends_kept()), 'LIMIT', 0, BULK)
  if #old > 0 then
    call('HDEL', ENDED, unpack(old))
    call('ZREM', ENDINGS, unpack(old))
  end
  if max(history, results) == 0 and call('EXISTS', ENDINGS) == 0 then flag('h', false) end
end

-- Closed groups: see bide.engines.rules.closing.

-- Returns until when a group is closed; nil: it is open, or empty, which is no group.
function closing.closed_until(group)
  local score = group ~= '' and has('c') and call('ZSCORE', CLOSED, group)
  local until_ = score and tonumber(score)
  return until_ and until_ > now and until_ or nil
end

-- Deletes the marks of groups that have opened by themselves, of BULK groups at most.
function closing.forget()
  local opened = call('ZRANGEBYSCORE', CLOSED, '-inf', int(now), 'LIMIT', 0, BULK)
  if #opened > 0 then call('ZREM', CLOSED, unpack(opened)) end
  if call('EXISTS', CLOSED) == 0 then flag('c', false) end
end

-- Records, and the way of a message from set to set.
--
-- A record is an array in MessagePack, of the fields of `StoredRecord` in layout.py, of which a put sends those
-- from `json` on. The last one is the body, in the form "bin 32", which cmsgpack does not know. That of a message
-- whose time has a rule is a `RuledRecord`: in front of the body it has the rule and, if it repeats, the run. The
-- lease of one that repeats has true in place of a successor while its own next run is to take its place: an ack of
-- many reads leases, and no records.
--
-- Writes go in an order that survives a server which dies between two of them: first the new place,
-- then the record, and last the old place is left. After half a change, a message is in two places, or
-- has a place and no record; claims step over both. A message with a record always has a place.
--
-- `r` is a message at hand, with the fields of its record by name, of its lease if it has one (token, until_,
-- holder, since, extended, stopping, progress, successor), and
--   id; member  order .. id
--   text, body_at  its record as it was read, and where in it the body begins; body: a new one instead
--   was  its state in the store: of the set that it is in; `state` is what it becomes
--   stands, line  its entry in LINES as it was read, and the new one, if the queue is limited
--   shut  until when the group is closed in which it would have waited: so it is cancelled
--   deleted  true: it is gone;  held_by  the holder of a lease that was over
--   tells, follows  of its outcome, see `outcome`: a word in place of its state; due time of a successor
local RECORD = '\220\0\16\172'  -- how a record begins: an array of 16, of which the first is a text of 12
local RULED = '\220\0\18\172'   -- how that of a message begins whose time has a rule: an array of 18
local LEASE = '\151\172'         -- how a lease begins: an array of 7, likewise
local NONE = '\192'              -- no successor, as the last field of a lease
local RENEWS = '\195'            -- the next run of the message itself, likewise
local BASE = {acked = 0, expired = STRIPE, dead = 2 * STRIPE}  -- KEPT has them in this order, each since when

-- The ranks of bide.model.rank. Times are Unix milliseconds.
local function delayed_rank(due, priority) return due * PRIORITIES + PRIORITIES - 1 - priority end

-- Returns the highest rank of a delayed message that is due by `moment`.
local function delayed_reach(moment) return delayed_rank(moment, 0) end

local function ready_rank(due, priority) return (PRIORITIES - 1 - priority) * STRIPE + due end

-- Returns the rank that a delayed message gets in READY.
local function rank_when_ready(rank) return rank % PRIORITIES * STRIPE + floor(rank / PRIORITIES) end

-- Returns the due time of a delayed message.
local function due_of_rank(rank) return floor(rank / PRIORITIES) end

local parse, save, read_lease, read_held, write_lease

-- Returns the body of a record. It is long, so it is taken out of the record only if it is asked for.
local function body_of(r) return r.body or sub(r.text, r.body_at + 5) end

do  -- the whole text has room for only so many local names
local NOTED = '\153\172'  -- how a lease begins that has notes about its worker: an array of 9

-- Returns the head of a body of so many bytes.
local function head_of_body(bytes) return '\198' .. struct.pack('>I4', bytes) end

-- Returns what a record says; nil or an error: it cannot be read. `floor` and `..` refuse values of other types.
local function read_record(id, text)
  local head = sub(text, 1, #RECORD)
  local ruled = head == RULED
  local at, order, due, created, json, priority, attempt, attempts, expires, state, ended, planned, asked, group,
    headers, failures, rule, run = cmsgpack.unpack_limit(text, ruled and 17 or 15, 3)
  if not ruled and head ~= RECORD or state and not BASE[state] or type(failures) ~= 'table'
    or sub(text, at + 1, at + 5) ~= head_of_body(#text - at - 5) then return nil end
  return {
    id = id, order = order, member = order .. id, due = floor(due), created = floor(created), json = json,
    priority = floor(priority), attempt = floor(attempt), attempts = floor(attempts),
    expires = expires and floor(expires), state = state, was = state, ended = ended and floor(ended),
    planned = planned and floor(planned), asked = asked and floor(asked), group = group .. '',
    headers = headers .. '', failures = failures, rule = ruled and rule .. '' or nil, run = run and run .. '',
    text = text, body_at = at + 1,
  }
end

-- Returns what a record says; nil: it cannot be read, since something else has changed it.
function parse(id, text)
  local readable, r = pcall(read_record, id, text)
  return readable and r or nil
end

-- Writes the record of a message.
function save(r)
  if r.priority > 0 then flag('w', true) end
  if r.expires then flag('e', true) end
  local fields = pack(r.due, r.created, r.json, r.priority, r.attempt, r.attempts, r.expires, r.state,
    r.ended, r.planned, r.asked, r.group, r.headers, r.failures)
  local body = r.body and head_of_body(#r.body) .. r.body or sub(r.text, r.body_at)
  local head = RECORD
  if r.rule then head, fields = RULED, fields .. pack(r.rule, r.run) end
  call('HSET', RECORDS, r.id, head .. r.order .. fields .. body)
end

-- Returns the token, the end, what follows and the other fields of a lease; nothing, or an error: it cannot be read.
function read_held(text)
  local is_noted = sub(text, 1, #NOTED) == NOTED
  local at, order, token, until_, holder, since, extended, stopping, progress =
    cmsgpack.unpack_limit(text, is_noted and 8 or 6, 1)
  if at < 0 or not is_noted and sub(text, 1, #LEASE) ~= LEASE then return end
  local successor = sub(text, at + 1)
  return int(token), floor(until_), successor ~= NONE and successor or nil, order, holder .. '', floor(since), floor(extended),
    stopping and stopping .. '', progress and progress .. ''
end

-- Returns what a lease says, of which the successor is a record or nil; nil: there is none, or it cannot be read.
function read_lease(text)
  if not text then return nil end
  local readable, token, until_, successor, order, holder, since, extended, stopping, progress = pcall(read_held, text)
  if successor == RENEWS then successor = nil end
  return readable and token and {token = token, until_ = until_, successor = successor, order = order,
    holder = holder, since = since, extended = extended, stopping = stopping, progress = progress} or nil
end

-- Writes the lease of a message.
function write_lease(r)
  local head, fields = LEASE, pack(r.token, r.until_, r.holder, r.since, r.extended)
  if r.stopping or r.progress then
    head, fields = NOTED, fields .. pack(r.stopping, r.progress)
  end
  call('HSET', LEASES, r.id, head .. r.order .. fields .. (r.successor or r.run and RENEWS or NONE))
end
end

-- Removes a message from its place, unless that is the set `stays`, where it has a new place already; ends its
-- lease. A lease that ends so may not be followed by one with an older token. So in a queue of several shards,
-- META has in `returned` the highest token of such a lease, and a claim that has an older one leases no more here.
local function leave(r, stays)
  if r.token then
    if SHARDS > 1 and tonumber(r.token) > tonumber(call('HGET', META, 'returned') or 0) then
      call('HSET', META, 'returned', r.token)
    end
    call('HDEL', LEASES, r.id)
    call('ZREM', LEASED, r.member)
    -- Half an end may have left a place there, if the lease was left to lapse.
    if r.until_ <= now and stays ~= KEPT then call('ZREM', KEPT, r.member) end
    r.token, r.until_, r.holder, r.successor, r.stopping, r.progress = nil, nil, nil, nil, nil, nil
  elseif r.was then
    if stays ~= KEPT then call('ZREM', KEPT, r.member) end
  elseif stays == DELAYED or call('ZREM', DELAYED, r.member) == 0 then
    if stays ~= READY then call('ZREM', READY, r.member) end
  end
  if limited then leave_line(r) end
  r.was = r.state
end

-- Remembers that a message goes to an earlier set, or to an earlier place in its set: a scan that reads one
-- set after another reads it again.
local function remember_return(r)
  advance()
  if call('ZADD', RETURNS, int(change), r.member) == 1 then
    call('ZREMRANGEBYRANK', RETURNS, 0, -MAX_RETURNED - 1)
  end
end

-- Moves a message to a set. The caller has set its fields.
local function move(r, set, rank)
  if set ~= KEPT then remember_return(r) end
  if limited and set == READY then enter_line(r) end
  call('ZADD', set, int(rank), r.member)
  save(r)
  leave(r, set)
end

-- Deletes a message, and counts it as that.
local function delete(r, counted)
  call('HDEL', RECORDS, r.id)
  if r.group ~= '' then call('ZREM', GROUPS, r.group .. '\1' .. r.member) end
  leave(r)
  r.deleted = true
  count(counted)
end

-- Until when the group is closed in which a message would wait; nil: it is open. That of a successor that
-- would have waited is in `r.shut`.
function closing.shut_until(r) return r.shut or closing.closed_until(r.group) end

-- Cancels a message instead of letting it wait, if its group is closed; returns whether it did.
function closing.shut(r)
  local until_ = closing.shut_until(r)
  if not until_ then return false end
  r.shut = until_
  remember_end(r, 'cancelled')
  delete(r, 'cancelled')
  r.due = nil
  return true
end

local function to_delayed(r)
  r.state, r.ended = nil, nil
  if closing.shut(r) then return end
  move(r, DELAYED, delayed_rank(r.due, r.priority))
end

local function to_ready(r)
  if not closing.shut(r) then move(r, READY, ready_rank(r.due, r.priority)) end
end

-- Sets a message aside: dead, or kept as acked or expired. `counted`: the counter that grows, if any.
local function set_aside(r, state, counted)
  r.state, r.ended = state, now
  if state ~= 'dead' then flag('k', true) end
  move(r, KEPT, BASE[state] + now)
  if counted then count(counted) end
end

-- Gives a message another group; its caller saves the record.
local function set_group(r, group)
  if group == r.group then return end
  if group ~= '' then
    flag('g', true)
    call('ZADD', GROUPS, 0, group .. '\1' .. r.member)
  end
  if r.group ~= '' then call('ZREM', GROUPS, r.group .. '\1' .. r.member) end
  r.group = group
end

-- Replaces a message whose lease ends by its successor. The caller has counted the end before.
local function follow(r)
  local successor = parse(r.id, r.successor)
  if not successor then return repair(r, r.successor) end
  set_group(r, successor.group)
  for _, field in ipairs({'due', 'created', 'json', 'priority', 'attempts', 'expires', 'headers', 'rule', 'run'}) do
    r[field] = successor[field]
  end
  r.attempt, r.failures, r.planned, r.asked, r.body = 0, {}, nil, nil, body_of(successor)
  to_delayed(r)
end

-- Removes the successor of a message whose lease ends, if its group is closed: the message ends as it would
-- without it, but does not wait again, since the successor was to be delivered in its place.
function closing.weigh_successor(r)
  local successor = r.successor and has('c') and parse(r.id, r.successor)
  local until_ = successor and closing.closed_until(successor.group)
  if until_ then r.successor, r.shut = nil, until_ end
end

-- Deletes a message whose worker was asked to stop, and has not acked it; its successor takes its place.
local function stopped(r)
  local holder, by = r.holder, r.stopping
  r.attempt = r.attempt + 1
  remember_end(r, 'cancelled', r.stopping ~= '' and r.stopping or nil)
  if r.successor then
    count('cancelled')
    count('put')
    return follow(r)
  end
  delete(r, 'cancelled')
  r.holder, r.stopping = holder, by
end

-- Adds a failure to a message; `since`: when its lease began, nil if this is no attempt.
local function add_failure(r, reason, moment, since)
  table.insert(r.failures, {r.attempt, moment, r.holder or '', reason, since})
  while #r.failures > KEPT_FAILURES do table.remove(r.failures, 1) end
end

-- Adds a failure, which happened at `moment`, to a message; `counted`: it counts as an attempt. Returns true if another
-- attempt is left, and nothing has been moved. Else, or if `final`, returns false: the message is dead now; one
-- with a successor is only counted so, and the caller lets that follow. One that repeats never dies of an attempt:
-- its attempts are used up, and who claims it makes a dead letter.
local function failed(r, reason, moment, counted, final)
  if counted then r.attempt = r.attempt + 1 end
  add_failure(r, reason, moment, counted and r.since or nil)
  if r.run and counted then
    if final then r.attempt = max(r.attempt, r.attempts) end
    return true
  end
  if not final and r.attempt < r.attempts then return true end
  remember_end(r, 'dead', counted and (r.holder or '') or actor)
  if r.successor then
    count('died')
    count('revived')
  else
    set_aside(r, 'dead', 'died')
  end
  return false
end

-- Makes a dead letter of a message whose record, or whose successor's, cannot be read: those bytes become
-- its body. A claim builds lines again that may name it otherwise.
function repair(r, text)
  if limited then begin_change(true) end
  set_group(r, '')
  r.json, r.body, r.headers, r.failures, r.rule, r.run, r.held_by = false, text, '', {}, nil, nil, r.holder
  if r.successor == text then r.successor = nil end
  failed(r, 'the record of this message in the store cannot be read: its bytes are the body', now, false, true)
  if r.successor then follow(r) end
  return r
end

-- Returns the record of an id, or nil. A lease that is over has been taken back; the message is `deleted` then if
-- its worker was asked to stop. If a record cannot be read, its place is known only if it is leased: it is repaired
-- then, else this returns nil, true.
local function locate(id, text)
  text = text or call('HGET', RECORDS, id)
  if not text then return nil end
  local r = parse(id, text)
  local readable = r ~= nil
  local lease = not (r and r.state) and read_lease(call('HGET', LEASES, id))
  if not r then
    if not lease then return nil, true end
    r = {id = id, order = lease.order, member = lease.order .. id, due = now, priority = 0, attempt = 0,
      attempts = DEFAULT_ATTEMPTS, created = 0, group = ''}
  end
  if lease and lease.order == r.order then
    for name, value in pairs(lease) do r[name] = value end
  end
  if limited then find_line(r) end
  if not readable then return repair(r, text) end
  if r.token and r.until_ <= now then
    closing.weigh_successor(r)
    if r.stopping then
      count('lapsed')
      stopped(r)
      return r
    end
    r.held_by = r.holder
    local survives = failed(r, 'the lease lapsed: the holder died, hung, or needed longer than its lease', r.until_, true)
    if survives then count('lapsed') end  -- else it has died, which is counted
    if r.successor then
      follow(r)
    elseif survives then
      to_ready(r)
    end
    if not r.deleted then r.shut = nil end  -- it is a dead letter, and what comes next is about its own group
  end
  return r
end

-- Returns whether a record is what the caller saw: of this due time and version, unless these are nil. A version is
-- a hash of what an edit can change, as `Message.version` makes it: of a message that repeats, its rule stands for
-- the due time; of another one, a rule is one more part.
local function is_still(r, due, version)
  if due and due ~= r.due then return false end
  if not version then return true end
  local line = concat({r.run and r.rule or int(r.asked or r.planned or r.due), r.priority, r.attempts,
    r.expires and int(r.expires + r.due - (r.planned or r.due)) or '-', r.json and 'j' or 'b', #r.group, #r.headers, not r.run and r.rule or nil}, ' ')
  return sub(redis.sha1hex(concat({line, '\n', r.group, r.headers, body_of(r)})), 1, 16) == version
end

-- Returns one outcome: [done, state, due, until, holder, due of the successor that came or has gone]; there is no
-- such message: [done].
local function outcome(r, done)
  if not r then return {false} end
  if r.deleted and r.shut then return {true} end
  if r.deleted then return {true, null, r.due, r.due and null, r.holder} end
  local state = r.tells or r.state or r.token and 'leased' or r.due <= now and 'ready' or 'delayed'
  return {done, state, r.due, r.until_ or r.ended or null, r.holder or null, r.follows}
end

-- Returns the ids of members of a set.
local function ids_of(members)
  local ids = {}
  for i, member in ipairs(members) do ids[i] = sub(member, ORDER + 1) end
  return ids
end

-- Deletes the records of ids, and their entries in groups. The caller removes their places. `how` they end
-- is remembered, unless it is nil.
local function drop(ids, how)
  if #ids == 0 then return end
  local entries = {}  -- in GROUPS
  local reads = limited or has('g') or how and has('h')  -- else nothing depends on what the records say
  for first = 1, reads and #ids or 0, READ do
    for i, text in ipairs(call('HMGET', RECORDS, unpack(ids, first, min(first + READ - 1, #ids)))) do
      local r = text and parse(ids[first + i - 1], text)
      if r and how then remember_end(r, how, actor) end
      if r and r.group ~= '' then entries[#entries + 1] = r.group .. '\1' .. r.member end
      if r and limited then drop_line(r) end
    end
  end
  call('HDEL', RECORDS, unpack(ids))
  if #entries > 0 then call('ZREM', GROUPS, unpack(entries)) end
end

-- Deletes messages that were kept for long enough: every change of a queue begins with this.
function forget()
  local day, keep = 24 * HOUR_MS, tonumber(call('HGET', META, 'keep') or 0)
  if not keep then _G.error(redis.error_reply('CORRUPT ' .. META)) end
  for state, lasts in pairs({acked = keep, expired = max(keep, day)}) do
    local members = call('ZRANGEBYSCORE', KEPT, int(BASE[state]), int(BASE[state] + now - lasts),
      'LIMIT', 0, BULK)
    drop(ids_of(members))
    if #members > 0 then call('ZREM', KEPT, unpack(members)) end
  end
end

-- The places of the messages of a state: ranges of the ordered sets, in rank order.

-- What `ranges` finds in DELAYED.
local OF_DELAYED = {delayed = true, due = true, waiting = true}

-- Returns a list of {set, lowest rank, highest rank}.
--   which          ready (as it was promoted), delayed (due or not), of these due or waiting, leased, dead,
--                  acked, expired, or returned
--   after, before  bounds of due; of dead, acked and expired messages, `before` bounds the time of their end
local function ranges(which, after, before)
  local LAST = due_of_rank(2 ^ 53) - 1  -- a score is exact up to 2 ^ 53
  if which == 'due' then before = min(before or now + 1, now + 1) end
  if which == 'waiting' then after = max(after or 0, now + 1) end
  local low, high = max(after or 0, 0), min(before or LAST, LAST) - 1
  if high < low then return {} end
  if OF_DELAYED[which] then return {{DELAYED, delayed_rank(low, PRIORITIES - 1), delayed_reach(high)}} end
  if which == 'leased' then return {{LEASED, low, high}} end
  if which == 'returned' then return {{RETURNS, low, high}} end
  if BASE[which] then return {{KEPT, BASE[which], BASE[which] + min(high, STRIPE - 1)}} end
  local stripes, rank = {}, 0
  while true do  -- a stripe for each priority: in it, messages are ordered by due
    local first = call('ZRANGEBYSCORE', READY, int(rank), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
    if not first then return stripes end
    local stripe = floor(first / STRIPE) * STRIPE
    stripes[#stripes + 1] = {READY, stripe + min(low, STRIPE), stripe + min(high, STRIPE - 1)}
    rank = stripe + STRIPE
  end
end

-- Returns the index of the first member of a set behind a rank, and among those of this rank behind an order of
-- putting: halves the range of equal ranks until it is found.
local function behind(set, rank, order)
  local low = call('ZCOUNT', set, '-inf', '(' .. int(rank))
  local high = call('ZCOUNT', set, '-inf', int(rank))
  while low < high do
    local middle = floor((low + high) / 2)
    if sub(call('ZRANGE', set, middle, middle)[1], 1, ORDER) > order then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
