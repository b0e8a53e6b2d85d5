-- claim: lease the next due messages; on the way take back what lapsed, expire what is too late.
-- A claim of very many comes in slices, so that no slice holds the server for long.
-- ARGV 5 count: how many are still wanted; 6 lease: milliseconds; 7 holder; 8 token: of the slice
--      before, or empty; how many may still be 9 taken back, 10 weighed, 11 examined; 12 how many
--      bytes the records may have
-- Reply: [head, ids, records, tags]; ids and tags are texts of lines, see tags_told; of many the
--   records are left to be fetched; head is JSON:
--   [now, token, next or null, weighted, taken back, weighed, examined, more slices to come]
--   Sent again after it had leased something: JSON [token, until], to be given to `recover`.
local SLICE, LAPSES, WEIGHED, PROMOTE = 500, 200, 1000, 1024
local wanted, holder = tonumber(ARGV[5]), ARGV[7]
local lapses, weigh, examine = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
room = tonumber(ARGV[12] or math.huge)
token = ARGV[8]
forget()

local lapsed, weighed, examined = 0, 0, 0

local function reply(next, more)
  tell_counts()
  remember_lease()
  local following = next and string.format('%.3f', math.max(0, next - part)) or 'null'
  local head = '[' .. concat({number(now), token == '' and '0' or token, following,
    has('w') and '1' or '0', lapsed, weighed, examined, more and 'true' or 'false'}, ',') .. ']'
  return {head, concat(ids, '\n'), texts, tags_told()}
end

local function enroll()
  call('ZADD', WAITERS, 'NX', number(now), LANE)
  flag('l', true)
end

local function wait()
  if LANE == '' then return end
  if has('l') and W().leader == LANE then W().nobody_leads() end
  enroll()
end

if not exists or has('p') then
  wait()
  return reply()
end

-- What lapsed.

if lapses > 0 then
  lapsed = take_back(math.min(lapses, LAPSES))
  if lapsed == LAPSES then return reply(nil, true) end
end

-- What is due. It goes straight from delayed to leased; by way of ready where weights or a backlog
-- matter.

local ready = call('EXISTS', READY) == 1

local function by_way_of_ready(left)
  return ready or has('w') and call('ZCOUNT', DELAYED, '-inf', reach) > left
end

local function next_token() return call('HINCRBY', META, 'token', '1') end

local limit = math.min(wanted, SLICE)
while #ids < limit and examined < examine and not (full and #ids > 0) do
  local set, members = DELAYED, nil
  local left = math.min(limit - #ids, 1000)
  if by_way_of_ready(wanted - #ids) then
    while weigh > weighed do
      local moved = promote(math.min(weigh - weighed, WEIGHED))
      weighed = weighed + moved
      if moved < WEIGHED then break end
      if weigh - weighed > 100 then return reply(nil, true) end
    end
    set = READY
    members = call('ZRANGE', READY, '0', left - 1)
  else
    members = call('ZRANGEBYSCORE', DELAYED, '-inf', reach, 'LIMIT', '0', left)
  end
  if #members == 0 then break end
  local before = room
  members = cut(members)
  if full and set == DELAYED and has('w') then  -- the weightiest go first
    room, full = before, false
    weighed = weighed + promote(PROMOTE)
    members = cut(call('ZRANGE', READY, '0', left - 1))
    set = READY
  end
  examined = examined + #members
  lease(set, members, holder, next_token)
  if #ids < limit then  -- some were too late, so that it looks again, and may look further
    ready = call('EXISTS', READY) == 1
    weigh, weighed = math.max(PROMOTE, wanted), 0
  end
end

if #ids > 0 then
  wait_no_more()
  return reply(nil, #ids == SLICE and wanted > SLICE and not full)
end

local moment = next_moment()
if LANE == '' or not moment or token ~= '' then
  if token == '' then wait() end
  return reply(moment and moment - now)
end
local w = W()
local at = w.at
if w.leader and w.leader ~= LANE and at + BEAT > now then
  if moment < at then
    w.wake(moment)
    at = moment
  end
  enroll()
  if w.leader ~= LANE then
    local second = w.first_waiter() == LANE
    return reply(second and math.max(at + BEAT - now, 0) or nil)
  end
end
call('ZREM', WAITERS, LANE)
if w.leader ~= LANE or at ~= moment then
  w.lead(LANE, moment)
  w.deputize(moment)
end
return reply(moment - now)
