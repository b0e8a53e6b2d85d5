-- claim: lease the next due messages; on the way take back what lapsed, expire what is too late.
-- A claim of very many comes in slices, so that no slice holds the server for long.
-- ARGV 5 count: how many are still wanted; 6 lease: milliseconds; 7 holder; 8 token: of the slice
--      before, or empty; how many may still be 9 taken back, 10 weighed, 11 examined
-- Reply: [head, ids, records]; head is JSON:
--   [now, token, next or null, weighted, taken back, weighed, examined, more slices to come]
--   Sent again after it had leased something: JSON [token, until], to be given to `recover`.
local SLICE, LAPSES, WEIGHED, PROMOTE = 500, 200, 1000, 1024
local wanted, holder = tonumber(ARGV[5]), ARGV[7]
local lapses, weigh, examine = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local token = ARGV[8]
forget()

local ids, texts = {}, {}
local lapsed, weighed, examined = 0, 0, 0

local function reply(next, more)
  for name, times in pairs(tally) do call('HINCRBY', META, name, times) end
  if #ids > 0 then
    local moment = number(now + ARGV[6])
    call('SET', TRY, MARK .. ' [' .. token .. ',' .. moment .. ']', 'PX', 60000)
  end
  local head = cjson.encode({now, tonumber(token) or 0, next or null, meta[WEIGHTED] and 1 or 0,
    lapsed, weighed, examined, more})
  return {head, ids, texts}
end

local function enroll()
  call('ZADD', WAITERS, 'NX', now, LANE)
  flag(WAITS, 'waits')
end

local function wait()
  if LANE == '' then return end
  if meta[LEADER] == LANE then W().nobody_leads() end
  enroll()
end

if not exists or meta[PAUSED] == '1' then
  wait()
  return reply()
end

-- What lapsed.

if lapses > 0 then
  local limit = math.min(lapses, LAPSES)
  local members = call('ZRANGEBYSCORE', LEASED, '-inf', now, 'LIMIT', 0, limit)
  for _, member in ipairs(members) do R().locate(string.sub(member, SEQ + 1)) end
  lapsed = #members
  if lapsed == LAPSES then return reply(nil, true) end
end

-- What is due. It goes straight from delayed to leased; by way of ready where weights or a backlog
-- matter.

local reach = now * 256 + 255

local function promote(limit)
  local found = call('ZRANGEBYSCORE', DELAYED, '-inf', reach, 'WITHSCORES', 'LIMIT', 0, limit)
  local ranks = {}
  for i = 1, #found, 2 do
    local rank = tonumber(found[i + 1])
    ranks[i] = rank % 256 * WEIGHT + math.floor(rank / 256)
    ranks[i + 1] = found[i]
  end
  if #found > 0 then
    many('ZADD', READY, ranks)
    call('ZREMRANGEBYRANK', DELAYED, 0, #found / 2 - 1)
  end
  return #found / 2
end

local function by_way_of_ready(left)
  return call('EXISTS', READY) == 1
    or meta[WEIGHTED] and call('ZCOUNT', DELAYED, '-inf', reach) > left
end

local function take(set, members)
  local found = {}
  for i, member in ipairs(members) do found[i] = string.sub(member, SEQ + 1) end
  local records = each('HMGET', RECORDS, found)
  local leases, held = {}, {}
  for i, id in ipairs(found) do
    local text = records[i]
    local late = false
    if meta[EXPIRING] then
      local r = R().parse(id, text)
      if r.expires and now > r.due + r.expires then
        late = true
        R().aside(r, 'expired', now)
        count('expired')
        R().save(r)
      end
    end
    if not late then
      ids[#ids + 1], texts[#texts + 1] = id, text
      leases[#leases + 1] = now + ARGV[6]
      leases[#leases + 1] = members[i]
      held[#held + 1] = id
      held[#held + 1] = string.sub(members[i], 1, SEQ)
    end
  end
  call('ZREMRANGEBYRANK', set, 0, #members - 1)
  if #held > 0 then
    if token == '' then token = string.format('%.0f', call('HINCRBY', META, 'token', 1)) end
    local tail = token .. ' ' .. holder
    for i = 2, #held, 2 do held[i] = held[i] .. tail end
    many('ZADD', LEASED, leases)
    many('HSET', HELD, held)
  end
end

local limit = math.min(wanted, SLICE)
while #ids < limit and examined < examine do
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
    members = call('ZRANGE', READY, 0, left - 1)
  else
    members = call('ZRANGEBYSCORE', DELAYED, '-inf', reach, 'LIMIT', 0, left)
  end
  if #members == 0 then break end
  examined = examined + #members
  take(set, members)
  if #ids < limit then  -- some were too late, so that it looks again, and may look further
    weigh, weighed = math.max(PROMOTE, wanted), 0
  end
end

-- What is next.

local function next_moment()
  if call('EXISTS', READY) == 1 then return now end
  local due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
  local lapse = call('ZRANGE', LEASED, 0, 0, 'WITHSCORES')[2]
  due = due and math.floor(tonumber(due) / 256)
  lapse = tonumber(lapse)
  local moment = due and lapse and math.min(due, lapse) or due or lapse
  return moment and math.max(now, moment)
end

if #ids > 0 then
  if LANE ~= '' and (meta[LEADER] or meta[WAITS]) then
    call('ZREM', WAITERS, LANE)
    if meta[LEADER] == LANE then W().nobody_leads() end
    if W().first_waiter() then wake(next_moment()) end
  end
  return reply(nil, #ids == SLICE and wanted > SLICE)
end

local moment = next_moment()
if LANE == '' or not moment or token ~= '' then
  if token == '' then wait() end
  return reply(moment and moment - now)
end
local at = tonumber(meta[LEAD_AT] or nil)
if meta[LEADER] and meta[LEADER] ~= LANE and at + BEAT > now then
  if moment < at then
    wake(moment)
    at = moment
  end
  enroll()
  if meta[LEADER] ~= LANE then
    local second = W().first_waiter() == LANE
    return reply(second and math.max(at + BEAT - now, 0) or nil)
  end
end
call('ZREM', WAITERS, LANE)
if meta[LEADER] ~= LANE or at ~= moment then
  W().lead(LANE, moment)
  W().deputize(moment)
end
return reply(moment - now)
