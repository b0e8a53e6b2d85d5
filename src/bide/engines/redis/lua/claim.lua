-- include: records waking leasing
-- flags: allow-oom
-- claim: lease the next due messages. Takes back leases that are over, and expires what is too late.
-- A claim of many comes in slices, so that no slice holds the server for long.
-- ARGV 8 count: how many are still wanted; 9 lease: milliseconds; 10 holder
--     11 token: of the slice before, or empty; how many may still be 12 taken back, 13 moved to ready,
--     14 examined; 15 bytes: how large the reply may become
--     16 1 over several shards: lease the first ready ones, and nothing else; else empty
--     17 floor: over several shards, the highest token that is known
-- Reply: [head, ids, records]; head is JSON:
--   [now, change, token, until, next or null, weighted, taken back, moved, examined,
--   more slices to come, [[id, attempts, last holder] of each that is dead now, since its lease ended]]
local SLICE, READ, PROMOTE = 500, 64, 1024
local wanted, holder, token = tonumber(ARGV[8]), ARGV[10], ARGV[11]
local lapses, weigh, examine = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
local left, shared = tonumber(ARGV[15]), ARGV[16] == '1'
local until_ = now + ARGV[9]
local ids, texts = {}, {}
local lapsed, promoted, examined = 0, 0, 0

local function reply(next, more)
  write_counts()
  if #ids > 0 then remember('lease ' .. token .. ' ' .. int(until_)) end
  local following = next and string.format('%.3f', max(0, next - part)) or 'null'
  local head = {token == '' and '0' or token, int(until_), following, tostring(has('w')), lapsed, promoted,
    examined, tostring(more == true), '[' .. concat(died, ',') .. ']'}
  return {json(concat(head, ',')), ids, texts}
end

if replayed then
  token, until_ = match(replayed, '^lease (%d+) (%d+)$')
  local mark = ' ' .. token .. ' ' .. until_ .. ' '
  for _, member in ipairs(call('ZRANGEBYSCORE', LEASED, until_, until_)) do
    local id = sub(member, ORDER + 1)
    local lease, text = call('HGET', LEASES, id), call('HGET', RECORDS, id)
    if text and lease and find(lease, mark, 1, true) == ORDER + LENGTH + 2 then
      ids[#ids + 1], texts[#texts + 1] = id, text
    end
  end
  flags = flags .. 'w'  -- in the order of their ranks, as the client sorts them
  return reply(nil, false)
end

local function give_token()
  if token == '' and SHARDS == 1 then
    token = int(meta[1] + 1)
  elseif token == '' then  -- each shard gives numbers of its own, above all that it has met (Lamport)
    token = int((floor(max(meta[1], tonumber(ARGV[17])) / SHARDS) + 1) * SHARDS + SHARD)
  end
  if tonumber(token) > tonumber(meta[1]) then
    meta[1] = token
    advance('token', token)
  else
    advance()
  end
end

local function expire(r)
  r.state, r.ended = 'expired', now
  flag('k', true)
  call('ZADD', KEPT, int(BASE.expired + now), r.member)
  save(r)
  count('expired')
end

-- Leases the first members of a set; returns whether there is room for more in the reply.
local function lease(set, members)
  local held, ends, looked, score, expires = {}, {}, 0, int(until_), has('e')
  local lengths, mark = {}, nil
  if expires then records() end
  for first = 1, #members, READ do
    local found = {}
    for i = first, min(first + READ - 1, #members) do
      found[#found + 1] = sub(members[i], ORDER + 1)
    end
    for i, text in ipairs(call('HMGET', RECORDS, unpack(found))) do
      local id, member = found[i], members[first + i - 1]
      local r = text and expires and parse(id, text)
      if r and is_late(r) then
        expire(r)
      elseif text then  -- else it is half a change, left by a server that died
        local size = #text + #id
        left = left - size
        if left < 0 and #ids > 0 then break end
        if not mark then
          give_token()
          mark = token .. ' ' .. score .. ' ' .. holder
        end
        local length = lengths[size]
        if not length then
          length = string.format(' %010d ', size)
          lengths[size] = length
        end
        local n = #held
        held[n + 1], held[n + 2] = id, sub(member, 1, ORDER) .. length .. mark
        ends[n + 1], ends[n + 2] = score, member
        ids[#ids + 1], texts[#texts + 1] = id, text
      end
      looked = looked + 1
    end
    if left < 0 and looked < first + #found - 1 then break end
  end
  examined = examined + looked
  if #held > 0 then
    if #held > 64 then
      -- Redis searches a small hash field by field; a value past 64 bytes makes it a table.
      call('HSET', LEASES, held[1], held[2] .. string.rep(' ', 64))
    end
    call('HSET', LEASES, unpack(held))
    call('ZADD', LEASED, unpack(ends))
  end
  if looked > 0 then call('ZREMRANGEBYRANK', set, 0, looked - 1) end
  return looked == #members
end

local function due_of(set, most)
  if set == READY then return call('ZRANGE', READY, 0, most - 1) end
  return call('ZRANGEBYSCORE', DELAYED, '-inf', REACH, 'LIMIT', 0, most)
end

local function wait()
  if LANE == '' then return end
  waking()
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

if shared then
  local stale = token ~= '' and tonumber(call('HGET', META, 'returned') or 0) >= tonumber(token)
  if exists and not has('p') and not stale then lease(READY, due_of(READY, wanted)) end
else
  if not exists or has('p') then
    wait()
    return reply()
  end
  lapsed = take_back(lapses)
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
  if #ids == SLICE and wanted > SLICE and not full then
    return reply(nil, true)
  end
end

if #ids > 0 and LANE ~= '' and has('l') then  -- this lane waits no longer: another one does
  waking()
  call('ZREM', WAITERS, LANE)
  if leader == LANE then lead_no_more() end
  if first_waiter() then wake(next_moment()) end
end
if #ids > 0 or shared then return reply() end

local moment = next_moment()
if token ~= '' then return reply(moment and moment - now) end
if LANE == '' or not moment then
  wait()
  return reply(moment and moment - now)
end
waking()
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
