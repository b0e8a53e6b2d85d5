-- Limits: how many messages of a limited queue (flag n) may be leased at a time and how many delivered
-- per second, as a whole and of each group; and whose turn it is. See the memory engine.
--
-- LINES holds, in the order of their bytes:
--   w group \1 rank member  a message in READY; 14 hexadecimal digits of its rank there: the line of its group
--   r group \1 member       a message in LEASES: it runs
--   z last group            a group with neither, until its rate allows more; 14 digits of microseconds
-- TURNS holds groups with a line. A score above 0: the number of its turn; below 0: it waits for its rate,
-- and this is when its last message counts as served, in microseconds. A full group is not there.
-- SHARES: group -> "turn last freed"; turn is 0 without a line, -1 if there is a z. Messages without a
-- group are the group "", which is never full and waits for no rate.
-- Entries that are set twice, or removed twice, are the same: no count can go wrong.
--
-- In META: limits "limit rate group_limit group_rate", rates as microseconds from one message to the
-- next; service "turn last freed" of the queue, of which `turn` is the number of the group that
-- entered last, see bide.model.rank; lining: up to where messages have been lined up that were there
-- before the limits; looked: how far a look ahead came, see claim.lua; unsettled: a change has begun. A
-- server that dies within one leaves `unsettled`, and a claim lines up everything again.
local limit, rate, group_limit, group_rate
local turn, last, freed, lining
local unsettled  -- whether a change before this call was cut off
local touched    -- groups whose line or leases have changed in this call: 0, or the place in `entered`
local entered    -- those that have entered, in their order
local line_at, limits_now, write_service, stand, settle, settle_all, is_full, running
local opens, opens_next, count_lines, is_in_line, held_by
local open_groups, first_groups, head_of, rate_allows, may_serve, note_served
local groups_of, line_up, line_up_step, begin_lines

do
local STEP = BULK  -- how many are lined up at once
local entries                     -- how many groups have entered since `service` was written
local now_us
local marked  -- whether this call has said in META that its change has begun

function line_at(group, rank, member)
  return concat({'w', group, '\1', format('%014x', rank), member})
end

local function line_of(r) return line_at(r.group, ready_rank(r.due, r.priority), r.member) end

local function run_of(r) return concat({'r', r.group, '\1', r.member}) end

local function idle_at(group, moment) return format('z%014x', moment) .. group end

local function numbers(text)
  local values = {}
  for number in string.gmatch(text, '%-?%d+') do values[#values + 1] = tonumber(number) end
  return unpack(values)
end

function read_limits()
  local fields = call('HMGET', META, 'limits', 'service', 'lining', 'unsettled')
  limit, rate, group_limit, group_rate = numbers(fields[1] or '0 0 0 0')
  turn, last, freed = numbers(fields[2] or '0 0 0')
  lining, unsettled, touched, entered, marked, entries = fields[3], fields[4] ~= false, {}, {}, false, 0
  now_us = now * MICROSECONDS + floor(part * MICROSECONDS + 0.5)
end

function limits_now()
  if not limited then return 0, 0, 0, 0 end
  return limit, rate, group_limit, group_rate
end

function write_service()
  entries = 0
  call('HSET', META, 'service', concat({int(turn), int(last), int(freed)}, ' '))
end

-- A change of lines begins. `end_change` ends it, unless lines are lost: then a claim lines up all again.
function begin_change(lost)
  if not (marked or unsettled) then
    marked = true
    call('HSET', META, 'unsettled', '1')
  end
  unsettled = unsettled or lost
end

local function touch(name)
  begin_change()
  touched[name] = touched[name] or 0
end

-- A group gets a message into its line, which may have been empty.
local function touch_entering(name)
  touch(name)
  if touched[name] > 0 then return end
  entered[#entered + 1] = name
  touched[name] = #entered
end

function is_full() return limit > 0 and call('HLEN', LEASES) >= limit end

function running(group)
  return call('ZLEXCOUNT', LINES, '[r' .. group .. '\1', '(r' .. group .. '\2')
end

-- Returns the first entries of a line, or those behind one.
local function in_line(group, most, behind)
  local low = behind and '(' .. behind or '[w' .. group .. '\1'
  return call('ZRANGEBYLEX', LINES, low, '(w' .. group .. '\2', 'LIMIT', 0, most)
end

local function is_group_full(g, runs) return g.name ~= '' and group_limit > 0 and runs >= group_limit end

local function opens_for(g)  -- from when the rate of a group allows a message
  return g.name ~= '' and group_rate > 0 and g.last + group_rate or 0
end

-- Returns the record of a group, which the caller writes.
local function read_group(name, text)
  local g = {name = name, text = text or call('HGET', SHARES, name) or '0 0 0'}
  g.turn, g.last, g.freed = numbers(g.text)
  if g.turn == -1 then
    call('ZREM', LINES, idle_at(name, g.last))
    g.turn = 0
  end
  return g
end

local function write_group(g)
  local text = concat({int(g.turn), int(g.last), int(g.freed)}, ' ')
  if text ~= g.text then call('HSET', SHARES, g.name, text) end
  g.text = text
end

-- Puts a group where it is to be.
function stand(g, waits, runs)
  local opens = opens_for(g)
  if not waits then
    g.turn = 0
  elseif g.turn == 0 then
    turn, entries = turn + 1, entries + 1
    g.turn = turn
  end
  if waits and not is_group_full(g, runs) then
    call('ZADD', TURNS, int(opens > now_us and -g.last or g.turn), g.name)
  else
    call('ZREM', TURNS, g.name)
  end
  if not waits and runs == 0 then
    g.turn = -1
    call('ZADD', LINES, 0, idle_at(g.name, g.last))
  end
  write_group(g)
end

function settle(name)
  stand(read_group(name), in_line(name, 1)[1] ~= nil, running(name))
end

-- Puts all groups that this call has touched where they are to be: first those that have entered.
function settle_all()
  local names, order = touched, entered
  touched, entered = {}, {}
  for i, name in ipairs(order) do
    if names[name] == i then settle(name) end
  end
  for name, place in pairs(names) do
    if place == 0 then settle(name) end
  end
end

-- Ends a change.
function end_change()
  settle_all()
  if entries > 0 then write_service() end
  if marked and not unsettled then call('HDEL', META, 'unsettled') end
end

-- Notes the entry of a message in LINES, if it has one. Called before the message changes.
function find_line(r)
  if not r.state then r.stands = r.token and run_of(r) or line_of(r) end
end

-- A message gets into its line: called before it gets into READY.
function enter_line(r)
  r.line = line_of(r)
  touch_entering(r.group)
  call('ZADD', LINES, 0, r.line)
end

-- A message has left its line or its lease: it is in r.line now, or in no line.
function leave_line(r)
  local stood = r.stands
  r.stands, r.line = r.line, nil
  if not stood or stood == r.stands then return end
  if call('ZREM', LINES, stood) == 0 then return end
  local name = match(stood, '^.([^\1]*)')
  if sub(stood, 1, 1) == 'r' then
    if r.settles then touch(name) end
    return
  end
  touch(name)
  local rest = in_line(name, 2)
  if not rest[1] or not rest[2] and rest[1] == r.stands then  -- the group enters, with a new turn
    local g = read_group(name)
    g.turn = 0
    write_group(g)
    touched[name] = 0
    if rest[1] then touch_entering(name) end
  end
end

-- Removes a message from its line. It is deleted, and no worker holds it.
function drop_line(r)
  if call('ZREM', LINES, line_of(r)) == 1 then touch(r.group) end
end

-- A lease in a group ends: called before the lease is removed. A group that was not full and has a line
-- stays where it is.
function end_lease(r, name)
  begin_change()
  if freed < now and is_full() then
    freed = now
    write_service()
  end
  local g = {name = name}
  local was_full = group_limit > 0 and is_group_full(g, running(name))
  r.settles = was_full or not in_line(name, 1)[1]
  if not was_full then return end
  g = read_group(name)
  g.freed = now
  write_group(g)
end

-- Returns the time from which a claim gets a message that is in line, in microseconds; nil: not
-- before a lease has ended.
function opens()
  if is_full() then return nil end
  local own = max(now_us, rate > 0 and last + rate or 0)
  if call('ZCOUNT', TURNS, '(0', '+inf') > 0 then return own end
  local rests = call('ZREVRANGEBYSCORE', TURNS, '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return rests and max(own, group_rate - rests)
end

-- Returns the same as milliseconds; null as well if the queue is paused.
function opens_next()
  settle_all()
  if has('p') then return null end
  local us = opens()
  return us and ceil(us / MICROSECONDS) or null
end

-- Returns by how many entries the lines differ from the ready and leased messages.
function count_lines(ready, leased)
  if lining then return 0 end
  local waiting, runs = call('ZLEXCOUNT', LINES, '[w', '(x'), call('ZLEXCOUNT', LINES, '[r', '(s')
  return math.abs(waiting - ready) + math.abs(runs - leased)
end

-- Returns whether a ready or leased message is in its line, and its group where a claim finds it.
function is_in_line(r, held)
  if lining then return true end
  if not call('ZSCORE', LINES, held and run_of(r) or line_of(r)) then return false end
  local g = {name = r.group}
  return held or call('ZSCORE', TURNS, g.name) ~= false or is_group_full(g, running(g.name))
end

-- Returns the limit that holds a ready message of a group back, if one does: [by, value, running,
-- until or null].
function held_by(name)
  local turn_, last_ = numbers(call('HGET', SHARES, name) or '0 0')
  local all, runs = call('HLEN', LEASES), running(name)
  local own, opens = rate > 0 and last + rate or 0, opens_for({name = name, last = last_})
  if limit > 0 and all >= limit then return {'limit', limit, all, null} end
  if is_group_full({name = name}, runs) then return {'group_limit', group_limit, runs, null} end
  if own > max(now_us, opens) then return {'rate', rate, all, ceil(own / MICROSECONDS)} end
  if opens > now_us then return {'group_rate', group_rate, runs, ceil(opens / MICROSECONDS)} end
end

-- Lets groups take turns whose rate allows it again, and forgets those that are idle.
function open_groups()
  local rested = call('ZRANGEBYSCORE', TURNS, int(group_rate - now_us), '(0', 'LIMIT', 0, STEP)
  for _, name in ipairs(rested) do call('ZADD', TURNS, int(read_group(name).turn), name) end
  local last = group_rate > 0 and idle_at('\255', now_us - group_rate - CREDIT) or '{'
  local idle = call('ZRANGEBYLEX', LINES, '[z', '(' .. last, 'LIMIT', 0, STEP)
  if #idle == 0 then return end
  call('ZREM', LINES, unpack(idle))
  for i, entry in ipairs(idle) do idle[i] = sub(entry, 16) end
  call('HDEL', SHARES, unpack(idle))
end

-- Returns the first groups in turns, at most so many, to serve messages of.
function first_groups(most)
  local names = call('ZRANGEBYSCORE', TURNS, '(0', '+inf', 'LIMIT', 0, most)
  local texts = #names > 0 and call('HMGET', SHARES, unpack(names))
  local groups, step = {}, 1 + ceil(most / #names)
  for i, name in ipairs(names) do
    local g = read_group(name, texts[i])
    g.runs, g.line, g.at, g.step, g.ends = running(name), {}, 1, step, false
    groups[i] = g
  end
  return groups
end

-- Returns the first entry in the line of a group, behind those it has passed; nil: there is none.
function head_of(g)
  if not g.line[g.at] and not g.ends then
    g.line, g.at = in_line(g.name, g.step, g.line[#g.line]), 1
    g.ends = #g.line < g.step
  end
  return g.line[g.at]
end

function rate_allows() return rate == 0 or last + rate <= now_us end

function may_serve(g) return not is_group_full(g, g.runs) and opens_for(g) <= now_us end

-- A message of a group is served; returns when limits stopped holding it back, in milliseconds.
function note_served(g)
  local since = max(freed, g.freed, ceil(max(rate > 0 and last + rate or 0, opens_for(g)) / MICROSECONDS))
  turn = (floor(turn / GAP) + 1) * GAP
  last, g.last = max(last + rate, now_us - CREDIT), max(g.last + group_rate, now_us - CREDIT)
  g.turn, g.runs = turn + GAP, g.runs + 1
  return since
end

-- Returns the groups of members, in their order; false: there is no record.
function groups_of(members)
  local groups = {}
  for i, member in ipairs(members) do
    local id = sub(member, ORDER + 1)
    local text = call('HGET', RECORDS, id)
    groups[i] = text and (parse(id, text) or {group = ''}).group
  end
  return groups
end

-- Lines up members with their ranks, flat: rank, member.
function line_up(ranked)
  local members, entries = {}, {}
  for i = 2, #ranked, 2 do members[#members + 1] = ranked[i] end
  local groups = has('g') and groups_of(members)
  for i, member in ipairs(members) do
    local group = groups and groups[i] or ''
    touch_entering(group)
    entries[2 * i - 1], entries[2 * i] = 0, line_at(group, tonumber(ranked[2 * i - 1]), member)
  end
  if #entries > 0 then call('ZADD', LINES, unpack(entries)) end
end

local function set_lining(place)
  lining = place
  if place then call('HSET', META, 'lining', place) else call('HDEL', META, 'lining') end
end

-- Removes some of the former lines, then lines up some of the messages that were leased or ready before
-- the queue was limited; returns whether leased ones are still missing.
function line_up_step()
  local what, first, order = match(lining, '^(%a+) (%d+) ?(%x*)$')
  if what == 'former' then
    local former = call('ZRANGEBYLEX', LINES, '[r', '(x', 'LIMIT', 0, STEP)
    if #former > 0 then call('ZREM', LINES, unpack(former)) end
    if #former == STEP then return true end
    what, first = 'leased', '0'
  end
  if what == 'leased' then
    local page = call('HSCAN', LEASES, first, 'COUNT', STEP)
    local members, entries = {}, {}
    for i = 1, #page[2], 2 do members[#members + 1] = sub(page[2][i + 1], #LEASE + 1, #LEASE + ORDER) .. page[2][i] end
    for i, group in ipairs(groups_of(members)) do
      group = group or ''  -- half a change, left by a server that died
      touch(group)
      entries[2 * i - 1], entries[2 * i] = 0, concat({'r', group, '\1', members[i]})
    end
    if #entries > 0 then call('ZADD', LINES, unpack(entries)) end
    set_lining(page[1] == '0' and 'ready 0 0' or 'leased ' .. page[1])
    if page[1] ~= '0' then return true end
    first, order = 0, '0'
  end
  local at = behind(READY, tonumber(first), order)
  local ready = call('ZRANGE', READY, at, at + STEP - 1, 'WITHSCORES')
  for i = 1, #ready, 2 do ready[i], ready[i + 1] = ready[i + 1], ready[i] end
  line_up(ready)
  if #ready < 2 * STEP then
    set_lining(nil)
  else
    set_lining(concat({'ready', int(tonumber(ready[#ready - 1])), sub(ready[#ready], 1, ORDER)}, ' '))
  end
end

-- Begins to line up all messages again.
function begin_lines()
  call('UNLINK', TURNS)
  set_lining('former 0')
  call('HDEL', META, 'unsettled')
  unsettled, marked, touched, entered = false, false, {}, {}
end
end
