-- claim: lease the next due messages. Takes back leases that are over, and expires what is too late.
-- A claim of many comes in slices, so that no slice holds the server for long.
-- ARGV 8 count: how many are still wanted; 9 lease: milliseconds; 10 holder
--     11 token: of the slice before, or empty; how many may still be 12 taken back, 13 moved to ready,
--     14 examined; 15 bytes: how large the reply may become
--     16 1 over several shards: lease the first ready ones, and nothing else; else empty
--     17 floor: over several shards, the highest token that is known
-- Reply: [head, ids, records]; head is JSON:
--   [now, change, token, until, whether the queue keeps results, next or null, weighted, taken back, moved, examined,
--   more slices to come, [[id, attempts, last holder] of each that is dead now, since its lease ended]]
local SLICE, READ, PROMOTE = 500, 64, 1024
local TABLE = 32  -- from so many on, Redis is quicker if its set and its hash of leases are no lists
local LONG = '                                                                 '  -- longer than what Redis keeps in a list
local lease_token, until_, ids, texts, left, weighted, lapsed, promoted, examined

-- Replies; `next` is when to claim again, `more` whether more slices are to come.
local function reply(next, more)
  write_counts()
  if #ids > 0 then remember('lease ' .. lease_token .. ' ' .. int(until_)) end
  local following = next and format('%.3f', max(0, next - part)) or 'null'
  return {format('[%d,%d,%s,%d,%s,%s,%s,%d,%d,%d,%s,[%s]]', now, change, lease_token or '0', until_,
    tostring(has('h') and results > 0), following,
    tostring(weighted or has('w')), lapsed, promoted, examined, tostring(more == true),
    concat(died, ',')), ids, texts}
end

local function tell_again()
  lease_token, until_ = match(replayed, '^lease (%d+) (%d+)$')
  until_ = tonumber(until_)
  local mark = ' ' .. lease_token .. ' ' .. int(until_) .. ' '
  for _, member in ipairs(call('ZRANGEBYSCORE', LEASED, int(until_), int(until_))) do
    local id = sub(member, ORDER + 1)
    local lease, text = call('HGET', LEASES, id), call('HGET', RECORDS, id)
    if text and lease and find(lease, mark, 1, true) == ORDER + 1 then
      ids[#ids + 1], texts[#texts + 1] = id, text
    end
  end
  weighted = true  -- in the order of their ranks, as the client sorts them
  return reply()
end

-- Gives this claim its token, unless the slice before has one.
local function give_token()
  local given = lease_token and tonumber(lease_token) or token + 1
  if not lease_token and SHARDS > 1 then  -- each shard gives numbers of its own, above all that it has met (Lamport)
    given = (floor(max(token, tonumber(ARGV[17])) / SHARDS) + 1) * SHARDS + SHARD
  end
  lease_token = int(given)
  if given > token then
    token = given
    advance('token', lease_token)
  else
    advance()
  end
end

local function expire(r)
  remember_end(r, 'expired')
  r.state, r.ended = 'expired', now
  flag('k', true)
  call('ZADD', KEPT, int(BASE.expired + now), r.member)
  save(r)
  count('expired')
end

-- Leases the first members of a set; returns whether there is room for more in the reply.
local function lease(set, members)
  local held, ends, n, m, looked, expires = {}, {}, 0, #ids, 0, has('e')
  local ids, texts, room, score, mark = ids, texts, left, int(until_), nil
  for first = 1, #members, READ do
    local found = {}
    for i = first, min(first + READ - 1, #members) do
      found[i - first + 1] = sub(members[i], ORDER + 1)
    end
    local records = call('HMGET', RECORDS, unpack(found))
    for i = 1, #found do
      local id, text, member = found[i], records[i], members[first + i - 1]
      local r = text and expires and parse(id, text)
      if r and is_late(r) then
        expire(r)
      elseif text then  -- else it is half a change, left by a server that died
        room = room - #text - #id
        if room < 0 and m > 0 then break end
        if not mark then
          give_token()
          mark = ' ' .. lease_token .. ' ' .. score .. ' ' .. ARGV[10] .. '\t' .. int(now)
        end
        held[n + 1], held[n + 2] = id, sub(member, 1, ORDER) .. mark
        ends[n + 1], ends[n + 2] = score, member
        n, m = n + 2, m + 1
        ids[m], texts[m] = id, text
      end
      looked = looked + 1
    end
    if room < 0 and looked < first + #found - 1 then break end
  end
  left, examined = room, examined + looked
  if n >= 2 * TABLE then
    call('HSET', LEASES, held[1], held[2] .. LONG)
    call('ZADD', LEASED, 0, LONG)
  end
  if n > 0 then
    call('HSET', LEASES, unpack(held))
    call('ZADD', LEASED, unpack(ends))
  end
  if n >= 2 * TABLE then call('ZREM', LEASED, LONG) end
  if looked > 0 then call('ZREMRANGEBYRANK', set, 0, looked - 1) end
  return looked == #members
end

local function due_of(set, most)
  if set == READY then return call('ZRANGE', READY, 0, most - 1) end
  return call('ZRANGEBYSCORE', DELAYED, '-inf', due_by_now(), 'LIMIT', 0, most)
end

-- Leases what is due, and replies if it got something or more slices are to come.
local function take_due()
  local wanted, weigh, examine = tonumber(ARGV[8]), tonumber(ARGV[13]), tonumber(ARGV[14])
  lapsed = take_back(tonumber(ARGV[12]))
  if lapsed == 200 then return reply(nil, true) end
  local limit, full = min(wanted, SLICE), false
  while #ids < limit and examined < examine and not full do
    local set = DELAYED
    if has('w') or call('EXISTS', READY) == 1 then
      set = READY
      while weigh > promoted do
        local moved = promote(weigh - promoted)
        promoted = promoted + moved
        if moved < 1000 then break end
        if weigh - promoted > 100 then return reply(nil, true) end
      end
    end
    local members = due_of(set, limit - #ids)
    if #members == 0 then break end
    full = not lease(set, members)
    if #ids < limit then weigh, promoted = max(PROMOTE, wanted), 0 end  -- some expired: look further
  end
  if #ids == SLICE and wanted > SLICE and not full then return reply(nil, true) end
end

local function wait()
  if LANE == '' then return end
  if leader == LANE then lead_no_more() end
  enroll()
end

-- Returns from when on there is something to claim or to take back.
local function next_moment()
  if call('EXISTS', READY) == 1 then return now end
  local due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
  local lapse = tonumber(call('ZRANGE', LEASED, 0, 0, 'WITHSCORES')[2])
  due = due and floor(due / 256)
  local moment = due and lapse and min(due, lapse) or due or lapse
  return moment and max(now, moment)
end

-- Nothing is due before `moment`: leads those that wait for it, or waits behind who leads.
local function sleep(moment)
  local at = lead_at
  if leader and leader ~= LANE and at + BEAT > now then
    if moment < at then
      wake(moment)
      at = moment
    end
    enroll()
    if leader ~= LANE then
      return reply(first_waiter() == LANE and max(at + BEAT - now, 0) or nil)
    end
  end
  call('ZREM', WAITERS, LANE)
  if leader ~= LANE or at ~= moment then
    lead(LANE, moment)
    deputize(moment)
  end
  return reply(moment - now)
end

define('claim', {'allow-oom'}, function()
  lease_token, until_, left = ARGV[11] ~= '' and ARGV[11] or nil, now + ARGV[9], tonumber(ARGV[15])
  ids, texts, weighted, lapsed, promoted, examined = {}, {}, false, 0, 0, 0
  local before, shared = lease_token, ARGV[16] == '1'
  if replayed then return tell_again() end
  if shared then
    local stale = before and tonumber(call('HGET', META, 'returned') or 0) >= tonumber(before)
    if exists and not has('p') and not stale then lease(READY, due_of(READY, tonumber(ARGV[8]))) end
  elseif not exists or has('p') then
    wait()
    return reply()
  else
    local done = take_due()
    if done then return done end
  end
  if #ids > 0 and LANE ~= '' and has('l') then  -- this lane waits no longer: another one does
    call('ZREM', WAITERS, LANE)
    if leader == LANE then lead_no_more() end
    if first_waiter() then wake(next_moment()) end
  end
  if #ids > 0 or shared then return reply() end
  local moment = next_moment()
  if before then return reply(moment and moment - now) end
  if LANE == '' or not moment then
    wait()
    return reply(moment and moment - now)
  end
  return sleep(moment)
end)
