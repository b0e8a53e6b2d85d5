-- Limits: how many messages of a limited queue (flag n) may be leased at a time and how many delivered
-- per second, as a whole and of each group; its lines, heads, tags and rates: see bide.engines.limiter.
--
-- LINES holds, in the order of their bytes:
--   w group \1 rank member  a message in READY; 14 hexadecimal digits of its rank there: the line of its group
--   r group \1 member       a message in LEASES: it runs
-- HEADS holds one entry of each group that is not full, and has a line or is held by its rate:
--   h priority tag rank order group  its head competes; 2, 14, 14 and ORDER digits of its first message
--   s last group             its head waits for its rate; 14 digits of microseconds
--   z last group             it has no line and no leases, and is remembered until its rate allows more
-- TAGS: group -> "tag last entry", the entry without the group. Messages without a group are the group "",
-- which is never full and waits for no rate.
-- Entries that are set twice, or removed twice, are the same: no count can go wrong.
--
-- In META: limits "limit rate group_limit group_rate", rates as microseconds from one message to the
-- next; served "tag last" of the queue: of the head that was served last, and when; lining: up to where
-- messages have been lined up that were there before the limits; unsettled: a change has begun. A server
-- that dies within one leaves `unsettled`, and a claim lines up everything again.
local limit, rate, group_limit, group_rate
local tag, last, lining
local unsettled  -- whether a change before this call was cut off
local touched    -- groups whose line or leases have changed in this call: a set
local line_at, limits_now, write_served, stand, settle, settle_all, is_full, running
local opens, opens_next, count_lines, is_in_line, held_by
local wake_groups, forget_groups, first_heads, head_of, key_of, rate_allows, may_serve, note_served
local groups_of, line_up, line_up_step, begin_lines, touch

do
local STEP = BULK  -- how many are lined up at once
local KEY = 1 + 2 + 14 + 14 + ORDER  -- how long an `h` is before the group
local now_us
local marked  -- whether this call has said in META that its change has begun

function line_at(group, rank, member)
  return concat({'w', group, '\1', format('%014x', rank), member})
end

local function line_of(r) return line_at(r.group, ready_rank(r.due, r.priority), r.member) end

local function run_of(r) return concat({'r', r.group, '\1', r.member}) end

local function numbers(text)
  local values = {}
  for number in string.gmatch(text, '%-?%d+') do values[#values + 1] = tonumber(number) end
  return unpack(values)
end

function read_limits()
  local fields = call('HMGET', META, 'limits', 'served', 'lining', 'unsettled', 'service')
  limit, rate, group_limit, group_rate = numbers(fields[1] or '0 0 0 0')
  tag, last = numbers(fields[2] or '0 ' .. (match(fields[5] or '', ' (%d+)') or '0'))
  lining, unsettled, touched, marked = fields[3], fields[4] ~= false, {}, false
  now_us = now * MICROSECONDS + floor(part * MICROSECONDS + 0.5)
end

function limits_now()
  if not limited then return 0, 0, 0, 0 end
  return limit, rate, group_limit, group_rate
end

function write_served() call('HSET', META, 'served', int(tag) .. ' ' .. int(last)) end

-- A change of lines begins. `end_change` ends it, unless lines are lost: then a claim lines up all again.
function begin_change(lost)
  if not (marked or unsettled) then
    marked = true
    call('HSET', META, 'unsettled', '1')
  end
  unsettled = unsettled or lost
end

function touch(name)
  begin_change()
  touched[name] = true
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

-- Returns a group, of which a new one joins the next round.
local function read_group(name, text)
  text = text or call('HGET', TAGS, name)
  local g = {name = name, text = text, tag = tag + 1, last = 0, entry = ''}
  if text then
    local its_tag, its_last, entry = match(text, '^(%d+) (%d+) (.*)$')
    g.tag, g.last, g.entry = tonumber(its_tag), tonumber(its_last), entry
  else
    g.last = tonumber(match(call('HGET', OLD_SHARES, name) or '', ' (%d+)') or 0)
  end
  return g
end

-- Returns the head of a group as it competes, of an entry in its line: all but the group.
function key_of(g, entry)
  local rank = sub(entry, #g.name + 3, #g.name + 16)
  return concat({'h', format('%02x%014x', floor(tonumber(rank, 16) / STRIPE), g.tag), rank,
    sub(entry, #g.name + 17, #g.name + 16 + ORDER)})
end

-- Gives a group the entry that it is to have in HEADS; `first`: in its line, or nil. In this order, HEADS has
-- what TAGS names whenever the server dies.
function stand(g, first, runs)
  local entry = ''
  if not first then
    if runs == 0 then entry = format('z%014x', g.last) end
  elseif not is_group_full(g, runs) then
    entry = opens_for(g) > now_us and format('s%014x', g.last) or key_of(g, first)
  end
  local before = g.entry
  if entry ~= '' then call('ZADD', HEADS, 0, entry .. g.name) end  -- also one that HEADS has lost
  g.entry = entry
  local text = concat({int(g.tag), int(g.last), entry}, ' ')
  if text ~= g.text then call('HSET', TAGS, g.name, text) end
  g.text = text
  if entry ~= before and before ~= '' then call('ZREM', HEADS, before .. g.name) end
end

-- Returns the group.
function settle(name)
  local g = read_group(name)
  stand(g, in_line(name, 1)[1], running(name))
  return g
end

-- Settles the group of an entry in HEADS. An entry that is not that of its group was left by a server that died.
local function settle_entry(entry, length)
  local g = settle(sub(entry, length + 1))
  if g.entry .. g.name ~= entry then call('ZREM', HEADS, entry) end
end

-- Gives all groups that this call has touched the heads that they are to have.
function settle_all()
  local names = touched
  touched = {}
  for name in pairs(names) do settle(name) end
end

-- Ends a change.
function end_change()
  settle_all()
  if marked and not unsettled then call('HDEL', META, 'unsettled') end
end

-- Notes the entry of a message in LINES, if it has one. Called before the message changes.
function find_line(r)
  if not r.state then r.stands = r.token and run_of(r) or line_of(r) end
end

-- A message gets into its line: called before it gets into READY.
function enter_line(r)
  r.line = line_of(r)
  touch(r.group)
  call('ZADD', LINES, 0, r.line)
end

-- A message has left its line or its lease: it is in r.line now, or in no line.
function leave_line(r)
  local stood = r.stands
  r.stands, r.line = r.line, nil
  if not stood or stood == r.stands then return end
  if call('ZREM', LINES, stood) == 0 then return end
  local name = match(stood, '^.([^\1]*)')
  if sub(stood, 1, 1) == 'r' and find(call('HGET', TAGS, name) or '', ' [hs]') then
    begin_change()  -- the end of a lease changes nothing for a group that has a head
  else
    touch(name)
  end
end

-- Removes a message from its line. It is deleted, and no worker holds it.
function drop_line(r)
  if call('ZREM', LINES, line_of(r)) == 1 then touch(r.group) end
end

-- Lets heads compete whose rate allows it again.
function wake_groups()
  local rested = call('ZRANGEBYLEX', HEADS, '[s', '(s' .. format('%014x', max(0, now_us - group_rate + 1)), 'LIMIT', 0, STEP)
  for _, entry in ipairs(rested) do settle_entry(entry, 15) end
end

-- Forgets groups that are idle.
function forget_groups()
  local high = group_rate > 0 and '(z' .. format('%014x', max(0, now_us - group_rate - CREDIT + 1)) or '({'
  local idle = call('ZRANGEBYLEX', HEADS, '[z', high, 'LIMIT', 0, STEP)
  if #idle == 0 then return end
  local names = {}
  for i, entry in ipairs(idle) do names[i] = sub(entry, 16) end
  call('HDEL', TAGS, unpack(names))
  call('HDEL', OLD_SHARES, unpack(names))
  call('ZREM', HEADS, unpack(idle))
end

-- Whether a head competes.
local function competes() return call('ZRANGEBYLEX', HEADS, '[h', '(i', 'LIMIT', 0, 1)[1] ~= nil end

-- Returns the time from which a claim gets a message that is in line, in microseconds; nil: not
-- before a lease has ended.
function opens()
  if is_full() then return nil end
  local own = max(now_us, rate > 0 and last + rate or 0)
  if competes() then return own end
  wake_groups()
  if competes() then return own end
  local resting = call('ZRANGEBYLEX', HEADS, '[s', '(t', 'LIMIT', 0, 1)[1]
  return resting and max(own, tonumber(sub(resting, 2, 15), 16) + group_rate)
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
  if held or call('ZSCORE', OLD_TURNS, r.group) then return true end
  local g = read_group(r.group)
  return find(g.entry, '^[hs]') and call('ZSCORE', HEADS, g.entry .. g.name) ~= false
    or is_group_full(g, running(g.name))
end

-- Returns the limit that holds a ready message of a group back, if one does: [by, value, running,
-- until or null].
function held_by(name)
  local g = read_group(name)
  local all, runs = call('HLEN', LEASES), running(name)
  local own, opens = rate > 0 and last + rate or 0, opens_for(g)
  if limit > 0 and all >= limit then return {'limit', limit, all, null} end
  if is_group_full(g, runs) then return {'group_limit', group_limit, runs, null} end
  if own > max(now_us, opens) then return {'rate', rate, all, ceil(own / MICROSECONDS)} end
  if opens > now_us then return {'group_rate', group_rate, runs, ceil(opens / MICROSECONDS)} end
end

-- Returns the first heads that compete, at most so many, as groups in their order; behind which head
-- others compete, nil: there are none; and whether there were others that a server had left which died.
function first_heads(most)
  local broken = false
  local entries, names, groups = call('ZRANGEBYLEX', HEADS, '[h', '(i', 'LIMIT', 0, most), {}, {}
  for i, entry in ipairs(entries) do names[i] = sub(entry, KEY + 1) end
  local texts = #names > 0 and call('HMGET', TAGS, unpack(names))
  local step = 1 + ceil(most / #names)
  for i, name in ipairs(names) do
    local g = read_group(name, texts[i])
    g.key, g.runs = sub(entries[i], 1, KEY), group_limit > 0 and running(name) or 0
    g.line, g.at, g.step, g.ends, g.found = {}, 1, step, false, true
    if g.key == g.entry then
      groups[#groups + 1] = g
    else
      broken = true
      settle_entry(entries[i], KEY)
    end
  end
  return groups, #entries == most and sub(entries[most], 1, KEY) or nil, broken
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

-- A message of a group is served.
function note_served(g)
  tag = max(tag, g.tag)
  g.tag, g.runs = tag + 1, g.runs + 1
  last = max(last + rate, now_us - CREDIT)
  if g.name ~= '' then g.last = max(g.last + group_rate, now_us - CREDIT) end
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
    touch(group)
    entries[2 * i - 1], entries[2 * i] = 0, line_at(group, tonumber(ranked[2 * i - 1]), member)
  end
  if #entries > 0 then call('ZADD', LINES, unpack(entries)) end
end

local function set_lining(place)
  lining = place
  if place then call('HSET', META, 'lining', place) else call('HDEL', META, 'lining') end
end

-- Lines up some of the messages that were leased or ready before the queue was limited; returns whether leased ones are still missing.
function line_up_step()
  local what, first, order = match(lining, '^(%a+) (%d+) ?(%x*)$')
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
  call('UNLINK', LINES)
  set_lining('leased 0')
  call('HDEL', META, 'unsettled')
  unsettled, marked, touched = false, false, {}
end
end
