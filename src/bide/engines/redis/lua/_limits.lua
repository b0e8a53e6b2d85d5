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
--
-- `g` is a group at hand: name; tag; last, when its last message counts as served, in microseconds; entry, the one
-- that it has in HEADS, without the name; text, what TAGS says of it, nil if nothing. Of a group whose head competes
-- in a claim, see `first_heads`, also
--   key  its entry in HEADS;  runs  how many of its messages are leased
--   line, at, step, ends  some entries of its line, which of these is the first, how many to read at once, and
--     whether there are none behind these
--   found  true: its key is that of HEADS, and it has not been looked at yet
local limit, rate, group_limit, group_rate  -- 0: none
local tag, last  -- of the head that was served last; when, in microseconds
local lining     -- as in META, or false
local unsettled  -- whether a change before this call was cut off
local touched    -- groups whose line or leases have changed in this call: a set
local line_at, limits_now, write_served, stand, settle, settle_all, running
local opens, opens_next, count_lines, is_in_line, held_by
local wake_groups, forget_groups, first_heads, head_of, key_of, rate_allows, may_serve, note_served
local groups_of, line_up, line_up_step, begin_lines, touch

do
local STEP = BULK  -- how many are lined up at once
local KEY = 1 + 2 + 14 + 14 + ORDER  -- how long an `h` is before the group
local now_us  -- microseconds
local marked  -- whether this call has said in META that its change has begun

-- Returns the entry of a ready message in LINES.
function line_at(group, rank, member)
  return concat({'w', group, '\1', format('%014x', rank), member})
end

local function line_of(r) return line_at(r.group, ready_rank(r.due, r.priority), r.member) end

-- Returns the entry of a leased message in LINES.
local function run_of(r) return concat({'r', r.group, '\1', r.member}) end

-- Returns the numbers in a text, each as a value.
local function numbers(text)
  local values = {}
  for number in string.gmatch(text, '%-?%d+') do values[#values + 1] = tonumber(number) end
  return unpack(values)
end

-- Reads from META what limits depend on.
function read_limits()
  local limits, served, lining_, unsettled_, service =
    unpack(call('HMGET', META, 'limits', 'served', 'lining', 'unsettled', 'service'))
  limit, rate, group_limit, group_rate = numbers(limits or '0 0 0 0')
  tag, last = numbers(served or '0 ' .. (match(service or '', ' (%d+)') or '0'))  -- `service`: of an older bide
  lining, unsettled, touched, marked = lining_, unsettled_ ~= false, {}, false
  now_us = now * MICROSECONDS + floor(part * MICROSECONDS + 0.5)
end

-- Returns the four limits.
function limits_now()
  if not limited then return 0, 0, 0, 0 end
  return limit, rate, group_limit, group_rate
end

function write_served() call('HSET', META, 'served', int(tag) .. ' ' .. int(last)) end

-- A change of lines begins. `end_change` ends it, unless `lost`: lines are lost, and a claim lines up all again.
function begin_change(lost)
  if not (marked or unsettled) then
    marked = true
    call('HSET', META, 'unsettled', '1')
  end
  unsettled = unsettled or lost
end

-- Notes that the line or the leases of a group change: its head is settled when the call ends.
function touch(name)
  begin_change()
  touched[name] = true
end

-- Returns whether no more messages of the queue may be leased.
local function is_full() return limit > 0 and call('HLEN', LEASES) >= limit end

-- Returns how many messages of a group are leased.
function running(group)
  return call('ZLEXCOUNT', LINES, '[r' .. group .. '\1', '(r' .. group .. '\2')
end

-- Returns the first entries of the line of a group, or those behind the entry `after`; `most` at most.
local function in_line(group, most, after)
  local low = after and '(' .. after or '[w' .. group .. '\1'
  return call('ZRANGEBYLEX', LINES, low, '(w' .. group .. '\2', 'LIMIT', 0, most)
end

-- Returns whether no more messages of a group may be leased, of which `runs` are.
local function is_group_full(g, runs) return g.name ~= '' and group_limit > 0 and runs >= group_limit end

-- Returns from when the rate of a group allows a message, in microseconds; 0: at any time.
local function opens_for(g)
  return g.name ~= '' and group_rate > 0 and g.last + group_rate or 0
end

-- Returns a group; one that TAGS does not know joins the next round. `text`: what TAGS says, nil: it is read.
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
  local rank_at = #g.name + 3  -- behind w, the group and \1
  local rank = sub(entry, rank_at, rank_at + 13)
  local order = sub(entry, rank_at + 14, rank_at + 13 + ORDER)
  local priority = floor(tonumber(rank, 16) / STRIPE)
  return concat({'h', format('%02x%014x', priority, g.tag), rank, order})
end

-- Gives a group the entry that it is to have in HEADS, or none. `first`: the first entry in its line, or nil; `runs`:
-- how many of its messages are leased. In this order, HEADS has what TAGS names whenever the server dies.
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

-- Gives a group the head that it is to have, and returns the group.
function settle(name)
  local g = read_group(name)
  stand(g, in_line(name, 1)[1], running(name))
  return g
end

-- Settles the group of an entry in HEADS, of which `length` bytes are before the name. An entry that is not that of its group was left by a server that died.
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

-- Returns whether a head competes.
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
  if held or call('ZSCORE', OLD_TURNS, r.group) then return true end  -- an older bide has it in line
  local g = read_group(r.group)
  return find(g.entry, '^[hs]') and call('ZSCORE', HEADS, g.entry .. g.name) ~= false
    or is_group_full(g, running(g.name))
end

-- Returns the limit that holds a ready message of a group back, if one does: [by, value, running,
-- until or null].
function held_by(name)
  local g = read_group(name)
  local all, runs = call('HLEN', LEASES), running(name)  -- how many are leased of the queue, and of the group
  local own, opens = rate > 0 and last + rate or 0, opens_for(g)  -- from when the rate of each allows a message
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

-- Returns whether the rate of the queue allows a message now.
function rate_allows() return rate == 0 or last + rate <= now_us end

-- Returns whether the limits of a group allow a message now.
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

-- Notes up to where messages have been lined up; nil: all are.
local function set_lining(place)
  lining = place
  if place then call('HSET', META, 'lining', place) else call('HDEL', META, 'lining') end
end

-- Lines up some of the messages that were leased or ready before the queue was limited; returns whether leased ones are still missing.
function line_up_step()
  local what, first, order = match(lining, '^(%a+) (%d+) ?(%x*)$')  -- leased, cursor; or ready, rank, order
  if what == 'leased' then
    local cursor, page = unpack(call('HSCAN', LEASES, first, 'COUNT', STEP))
    local members, entries = {}, {}
    for i = 1, #page, 2 do
      local id, lease = page[i], page[i + 1]
      members[#members + 1] = sub(lease, #LEASE + 1, #LEASE + ORDER) .. id
    end
    for i, group in ipairs(groups_of(members)) do
      group = group or ''  -- half a change, left by a server that died
      touch(group)
      entries[2 * i - 1], entries[2 * i] = 0, concat({'r', group, '\1', members[i]})
    end
    if #entries > 0 then call('ZADD', LINES, unpack(entries)) end
    set_lining(cursor == '0' and 'ready 0 0' or 'leased ' .. cursor)
    if cursor ~= '0' then return true end
    first, order = 0, '0'
  end
  local at = behind(READY, tonumber(first), order)
  local ready = call('ZRANGE', READY, at, at + STEP - 1, 'WITHSCORES')
  for i = 1, #ready, 2 do ready[i], ready[i + 1] = ready[i + 1], ready[i] end  -- rank, member, as `line_up` takes them
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
