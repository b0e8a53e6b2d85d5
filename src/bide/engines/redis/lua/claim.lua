-- claim: lease the next due messages. Takes back leases that are over, expires late messages, and cancels those in
-- closed groups.
-- A claim of many comes in slices, so that no slice blocks the server for long.
--   count   how many are still wanted; over several shards, how many of the first ready ones to look at
--   length  of the lease in milliseconds; holder
--   before  token of the slice before, or nil
--   room    how large the reply may become
--   share   over several shards: the second half of the claim, which leases so many of these at most, and does nothing
--           else; the lane waits no longer
--   highest  over several shards, the highest token that is known
-- Reply: [head, ids, records], nil instead of a record that this claim does not hold any more; head is:
--   [now, change, token, until, whether the queue keeps results, next or null,
--   more slices to come, [[id, attempts, last holder] of each that is dead now, since its lease ended],
--   whether the queue is limited, whether due ones are in no line then]
local lease_token, until_, wanted, holder, highest  -- the first one is text, or nil: this claim has none yet
local ids, texts  -- of the messages that are leased, and their records
local room, examined  -- bytes that are left in the reply; how many messages were looked at
local score  -- the end of all leases, as text

-- Returns the reply. `next`: in how many milliseconds to claim again, or nil; `more`: whether more slices are to come.
local function reply(next, more)
  local is_limited_now, behind = limited and not has('p'), false
  if limited then end_change() end
  if is_limited_now then behind = lining or call('ZCOUNT', DELAYED, '-inf', due_by_now()) > 0 end
  write_meta()
  if #ids > 0 then remember(concat({'lease', lease_token, score, more and 1 or 0}, ' ') .. '\n' .. concat(ids, '\n')) end
  return {answer(tonumber(lease_token or 0), until_, has('h') and results > 0,
    next and max(0, next - part) or null, more == true, died, is_limited_now, behind and true or false), ids, texts}
end

-- Returns the reply as the first try of this claim did. Messages whose lease has ended have no record.
local function tell_again()
  local more, id_lines
  lease_token, score, more, id_lines = match(replayed, '^lease (%d+) (%d+) (%d)\n(.*)$')
  until_ = tonumber(score)
  for id in string.gmatch(id_lines, '[^\n]+') do
    local lease, text = read_lease(call('HGET', LEASES, id)), call('HGET', RECORDS, id)
    local is_held = lease and lease.token == lease_token and lease.until_ == until_
    local n = #ids + 1
    ids[n], texts[n] = id, is_held and text or false
  end
  return reply(nil, more == '1')
end

-- Whether a message may not be delivered: it is too late, or its group is closed. One that repeats is never too late:
-- who claims it plans its next run.
local function is_unfit(r)
  return r.expires and not r.run and now > r.due + r.expires or closing.closed_until(r.group) ~= nil
end

-- Whether there can be such messages: else their records need not be read.
local function may_be_unfit() return has('e') or has('c') end

-- Ends a message that may not be delivered. Its place is where it was found, even if its record, by half a change of a
-- server that died, says that it has expired.
local function end_unfit(r)
  r.was = nil
  if closing.closed_until(r.group) then
    closing.shut(r)
  else
    remember_end(r, 'expired')
    set_aside(r, 'expired', 'expired')
  end
end

-- What is leased at once.
local begin_leases, hold, write_leases
do
local held, ends  -- for LEASES, id and lease; for LEASED, end and member
local mark, renewing  -- of all these leases, the fields that follow the order of putting; the same of messages that
  -- repeat; nil: none is leased yet

-- Gives this claim its token, unless the slice before has one.
local function give_token()
  local token = tonumber(lease_token)
  if not token then  -- each shard gives numbers of its own, above all that it has met (Lamport)
    local _, shard = names()
    token = (floor(max(numbers.token, highest) / SHARDS) + 1) * SHARDS + shard
  end
  lease_token = int(token)
  numbers.token = max(token, numbers.token)
  advance()
  set('token', numbers.token)
end

-- Begins with no message.
function begin_leases()
  held, ends, mark = {}, {}, nil
end

-- Adds a message to those that this call leases.
function hold(member, id, text)
  if not mark then
    give_token()
    score = int(until_)
    local fields = pack(lease_token, until_, holder, now, 0)
    mark, renewing = fields .. NONE, fields .. RENEWS
  end
  local n = #held
  -- An ack of a message that has a rule and does not repeat only takes the longer way for it.
  local ruled = sub(text, 1, #RULED) == RULED
  held[n + 1], held[n + 2] = id, LEASE .. sub(member, 1, ORDER) .. (ruled and renewing or mark)
  ends[n + 1], ends[n + 2] = score, member
  n = #ids + 1
  ids[n], texts[n] = id, text
end

-- Writes the leases that `hold` has added. Redis keeps a small hash or sorted set as a list, in which it looks for each
-- element from the beginning. An element of more than 64 bytes ends that: it is written first where many others
-- follow, and goes at the end. So a claim of 100 takes 0.75 of the time, one of 64 takes 0.85, and fewer gain less.
function write_leases()
  if #held == 0 then return end
  local LONG = '                                                                 '  -- longer than what Redis keeps in a list
  local many = #held >= 64  -- of 32 messages: `held` has two values of each
  if many then
    call('HSET', LEASES, held[1], held[2] .. LONG)
    call('ZADD', LEASED, 0, LONG)
  end
  call('HSET', LEASES, unpack(held))
  call('ZADD', LEASED, unpack(ends))
  if many then call('ZREM', LEASED, LONG) end
end
end

-- Of limited queues. A block, since the whole text has room for only so many local names.
local take_over, take_heads
do
-- Puts a group among others where its head competes; not behind `bound`, where others than these may come before it.
local function compete(groups, g, bound)
  local entry = may_serve(g) and head_of(g)
  if not entry then return end
  g.key = key_of(g, entry)
  if bound and g.key > bound then return end
  local at = 1
  while groups[at] and groups[at].key < g.key do at = at + 1 end
  table.insert(groups, at, g)
end

-- Looks at the first message in the line of a group, whose entry there is given; returns the entry, member, id and
-- record; nil if it is not to be served: it was too late, or half a change.
local function look(g, entry)
  local member = sub(entry, #g.name + 17)
  local id = sub(member, ORDER + 1)
  local text = call('ZSCORE', READY, member) and call('HGET', RECORDS, id)
  local r = text and may_be_unfit() and parse(id, text)
  if text and not (r and is_unfit(r)) then return entry, member, id, text end
  g.at = g.at + 1
  if text then
    examined = examined + 1
    r.stands = entry
    end_unfit(r)
  else  -- left by a server that died
    call('ZREM', LINES, entry)
    call('ZREM', READY, member)
  end
end

-- Leases up to `most` messages of a limited queue, as far as the first heads know which is next; returns whether a
-- further call may find more.
local function serve(most)
  local n, full = 0, false  -- how many it has leased; whether the next one has no room in the reply
  local runs, places, lines = {}, {}, {}
  -- Of these messages: runs: what LINES gets; places: their members of READY; lines: what LINES loses.
  begin_leases()
  local groups, bound, broken = first_heads(most)
  local all = {unpack(groups)}  -- `groups` loses those that do not compete any more
  while groups[1] and n < most and examined < PROMOTE and not full and rate_allows() do
    local g = table.remove(groups, 1)
    local first = head_of(g)  -- of a group that was found it may be another one than HEADS has
    local is_next = first and may_serve(g) and (not g.found or key_of(g, first) == g.key)
    g.found = false
    if is_next then
      local entry, member, id, text = look(g, first)
      if entry then
        room = room - #text - #id
        full = room < 0 and #ids > 0
      end
      if entry and not full then
        hold(member, id, text)
        n, examined = n + 1, examined + 1
        runs[2 * n - 1], runs[2 * n] = 0, concat({'r', g.name, '\1', member})
        places[n], lines[n] = member, entry
        note_served(g)
        g.at = g.at + 1
      end
    end
    compete(groups, g, bound)
  end
  if n > 0 then
    begin_change()
    write_leases()
    call('ZADD', LINES, unpack(runs))
    write_served()
  end
  for _, g in ipairs(all) do
    touched[g.name] = nil
    local first = head_of(g)
    stand(g, first, group_limit > 0 and g.runs or first and 0 or running(g.name))
  end
  if n > 0 then
    call('ZREM', READY, unpack(places))
    call('ZREM', LINES, unpack(lines))
  end
  return (#all > 0 or broken) and not full
end

-- Takes over what an older bide has left in its layout, or leaves while it works beside this one: groups
-- with a line in OLD_TURNS, and in LINES those that are idle, as `z`, 14 digits and the group.
function take_over()
  local waiting = call('ZRANGE', OLD_TURNS, 0, BULK - 1)
  if #waiting > 0 then
    for _, name in ipairs(waiting) do touch(name) end
    call('ZREM', OLD_TURNS, unpack(waiting))
  end
  local idle = call('ZRANGEBYLEX', LINES, '[z', '+', 'LIMIT', 0, BULK)
  if #idle == 0 then return end
  for _, entry in ipairs(idle) do touch(sub(entry, 16)) end
  call('ZREM', LINES, unpack(idle))
end

-- The same as `take_due`, below, of a limited queue; returns true, true if nothing was leased, and the next slice goes on.
function take_heads()
  if unsettled then begin_lines() end
  if lining and line_up_step() then return true, true end  -- what is leased counts first
  if not lining then promote(PROMOTE) end
  local most = min(wanted, SLICE)
  if limit > 0 then most = min(most, limit - call('HLEN', LEASES)) end
  settle_all()
  local goes_on = true
  while goes_on and #ids < most and examined < PROMOTE and rate_allows() do goes_on = serve(most - #ids) end
  if #ids == 0 and count_lines(call('ZCARD', READY), call('HLEN', LEASES)) > 0 then
    begin_lines()  -- half a change, left by a server that died
    return true, true
  end
  return goes_on
end
end

-- Leases the first members of a set, `most` at most; returns whether there is room for more in the reply.
local function lease(set, members, most)
  local looked, ended, full = 0, 0, false  -- at how many members it has looked, and how many of these it has ended
  local parses, all_ids, records = may_be_unfit(), ids_of(members), {}
  local before, bytes = 0, 0  -- how many members come before `records`, and the bytes of all records that were read
  begin_leases()
  for i, member in ipairs(members) do
    if i > before + #records then  -- one, then as many as fit, if they are as large as those before
      local read_count = min(READ, max(1, floor(room * (i - 1) / max(1, bytes))))
      before, records = i - 1, call('HMGET', RECORDS, unpack(all_ids, i, min(i + read_count - 1, #all_ids)))
    end
    local id, text = all_ids[i], records[i - before]
    bytes = bytes + (text and #text or 0)
    local r = text and parses and parse(id, text)
    if r and is_unfit(r) then
      end_unfit(r)
      ended = ended + 1
    elseif text then  -- claim.py has records repaired that cannot be read; without one: half a change
      room = room - #text - #id
      full = room < 0 and #ids > 0
      if full or #ids == most then break end
      hold(member, id, text)
    end
    looked = looked + 1
  end
  examined = examined + looked
  write_leases()
  if looked > ended then call('ZREMRANGEBYRANK', set, '0', int(looked - ended - 1)) end
  return not full
end

-- Returns the first due members of a set, `most` at most.
local function due_of(set, most)
  return call('ZRANGEBYSCORE', set, '-inf', set == READY and '+inf' or due_by_now(), 'LIMIT', '0', int(most))
end

-- Leases due messages; returns whether others may follow: there is room for them. They come from DELAYED without a
-- detour if the order is the same there: no message has a priority, and none is in READY.
local function take_due()
  local limit, full, set = min(wanted, SLICE), false, DELAYED
  if has('w') or call('EXISTS', READY) == 1 then
    set = READY
    promote(PROMOTE)
  end
  while #ids < limit and examined < PROMOTE and not full do
    local members = due_of(set, limit - #ids)
    if #members == 0 then return true end
    full = not lease(set, members, limit)
  end
  return not full
end

-- Returns the reply of a claim that finds nothing before `moment`, nil: before a change. Its lane waits now.
local function wait(moment)
  if LANE ~= '' then moment = enter(moment) end
  if not exists then expire_keys() end  -- perhaps no message is ever put there
  return reply(moment and moment - now)
end

define('claim', {'allow-oom'}, {'token'}, function(...)
  local length, before, share
  wanted, length, holder, before, room, share, highest = ...
  until_, lease_token = now + length, before and int(before)
  ids, texts, examined, died = {}, {}, 0, {}
  if replayed then return tell_again() end
  if share then
    -- A message that was given back since has had a newer lease than this claim may give: see `leave`.
    local stale = before and tonumber(call('HGET', META, 'returned') or 0) >= before
    if exists and wanted > 0 and not has('p') and not stale then lease(READY, due_of(READY, wanted), share) end
  elseif not exists or has('p') then
    return wait(pause_end)
  else
    if limited then
      take_over()
      settle_all()
      forget_groups()
      wake_groups()
    end
    take_back()
    local goes_on, again = (limited and take_heads or take_due)()  -- `again`: only `take_heads` returns it
    local is_full_slice = #ids == SLICE and wanted > SLICE
    if again or is_full_slice and goes_on then return reply(nil, true) end
  end
  if (#ids > 0 or share) and LANE ~= '' and has('l') then  -- this lane waits no longer: another one does
    call('ZREM', WAITERS, LANE)
    wake(next_moment())
  end
  if #ids > 0 or share then return reply() end
  local moment = next_moment()
  if before then return reply(moment and moment - now) end
  return wait(moment)
end)

-- peek: what a claim over several shards would find in this one. Takes back leases that are over, and
-- moves due messages to ready; it writes nothing if there is neither: waiting lanes peek each second.
--   most  how many messages to tell of
-- Reply: [now, change, highest token, how many are ready, [rank, order, 1 if it may not be delivered] of each of
--   the first ones, and as `claim` which are dead now]
define('peek', {'allow-oom'}, {'token'}, function(most)
  local listed, ready, changed = {}, 0, false
  died = {}
  if exists and not has('p') then
    changed = take_back()
    changed = promote(has('w') and PROMOTE or most) or changed
    if changed then advance() end
    local first = call('ZRANGE', READY, 0, most - 1, 'WITHSCORES')
    for i = 1, #first, 2 do
      local id = sub(first[i], ORDER + 1)
      local text = may_be_unfit() and call('HGET', RECORDS, id)
      local r = text and parse(id, text)
      local order = tonumber(sub(first[i], 1, ORDER), 16)
      listed[#listed + 1] = {tonumber(first[i + 1]), order, r and is_unfit(r) and 1 or 0}
    end
    ready = call('ZCARD', READY)
  end
  -- What is leased next depends on what this lists: a sender that sends again gets the same list.
  return (changed and finish or #listed > 0 and answer_again or answer)(numbers.token, ready, listed, died)
end)
