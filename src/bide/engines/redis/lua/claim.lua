-- claim: lease the next due messages; on the way take back what lapsed, expire what is too late.
-- A claim of very many comes in slices, so that no slice holds the server for long.
-- ARGV 5 count: how many are still wanted; 6 lease: milliseconds; 7 holder; 8 token: of the slice
--      before, or empty; how many may still be 9 taken back, 10 weighed, 11 examined
-- Reply: [head, ids, records]; head is JSON, ids a text of lines:
--   [now, token, next or null, weighted, taken back, weighed, examined, more slices to come]
--   Sent again after it had leased something: JSON [token, until], to be given to `recover`.
local SLICE, LAPSES, WEIGHED, PROMOTE = 500, 200, 1000, 1024
local wanted, holder = tonumber(ARGV[5]), ARGV[7]
local lapses, weigh, examine = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local token = ARGV[8]
local until_text
forget()

local ids, texts = {}, {}
local lapsed, weighed, examined = 0, 0, 0

local function reply(next, more)
  tell_counts()
  if #ids > 0 then
    call('SET', TRY, MARK .. ' [' .. token .. ',' .. until_text .. ']', 'EX', '60')
  end
  local head = '[' .. number(now) .. ',' .. (token == '' and '0' or token) .. ','
    .. (next and number(next) or 'null') .. (has('w') and ',1,' or ',0,')
    .. lapsed .. ',' .. weighed .. ',' .. examined .. (more and ',true]' or ',false]')
  return {head, concat(ids, '\n'), texts}
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
  local limit = math.min(lapses, LAPSES)
  local members = call('ZRANGEBYSCORE', LEASED, '-inf', number(now), 'LIMIT', '0', limit)
  for _, member in ipairs(members) do R().locate(sub(member, SEQ + 1)) end
  lapsed = #members
  if lapsed == LAPSES then return reply(nil, true) end
end

-- What is due. It goes straight from delayed to leased; by way of ready where weights or a backlog
-- matter.

local reach = number(now * 256 + 255)

local function promote(limit)
  local found = call('ZRANGEBYSCORE', DELAYED, '-inf', reach, 'WITHSCORES', 'LIMIT', '0', limit)
  local ranks = {}
  for i = 1, #found, 2 do
    local rank = tonumber(found[i + 1])
    ranks[i] = number(rank % 256 * WEIGHT + floor(rank / 256))
    ranks[i + 1] = found[i]
  end
  if #found > 0 then
    add('ZADD', READY, ranks)
    call('ZREMRANGEBYRANK', DELAYED, '0', #found / 2 - 1)
  end
  return #found / 2
end

local ready = call('EXISTS', READY) == 1

local function by_way_of_ready(left)
  return ready or has('w') and call('ZCOUNT', DELAYED, '-inf', reach) > left
end

-- Returns those that are not too late; the others expire.
local function in_time(members, found, records)
  local fine = {{}, {}, {}}
  for i, text in ipairs(records) do
    local r = is_long(text) and R().parse(found[i], text)
    if r and r.expires and now > r.due + r.expires then
      R().aside(r, 'expired', now)
      count('expired')
      R().save(r)
    else
      local n = #fine[1] + 1
      fine[1][n], fine[2][n], fine[3][n] = members[i], found[i], text
    end
  end
  return unpack(fine)
end

local function take(set, members)
  local found, before = {}, #members
  for i = 1, before do found[i] = sub(members[i], SEQ + 1) end
  local records = each('HMGET', RECORDS, found)
  call('ZREMRANGEBYRANK', set, '0', before - 1)
  if has('e') then members, found, records = in_time(members, found, records) end
  local total = #members
  if total == 0 then return end
  if token == '' then token = number(call('HINCRBY', META, 'token', '1')) end
  until_text = number(now + ARGV[6])
  local leases, held, mine = {}, {}, token .. ' ' .. holder
  for i = 1, total do
    local member = members[i]
    leases[2 * i - 1], leases[2 * i] = until_text, member
    held[2 * i - 1], held[2 * i] = found[i], sub(member, 1, SEQ) .. mine
  end
  add('ZADD', LEASED, leases)
  add('HSET', HELD, held)
  if #ids == 0 then
    ids, texts = found, records
  else
    for i = 1, total do ids[#ids + 1], texts[#texts + 1] = found[i], records[i] end
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
    members = call('ZRANGE', READY, '0', left - 1)
  else
    members = call('ZRANGEBYSCORE', DELAYED, '-inf', reach, 'LIMIT', '0', left)
  end
  if #members == 0 then break end
  examined = examined + #members
  take(set, members)
  if #ids < limit then  -- some were too late, so that it looks again, and may look further
    ready = call('EXISTS', READY) == 1
    weigh, weighed = math.max(PROMOTE, wanted), 0
  end
end

-- What is next.

local function next_moment()
  if call('EXISTS', READY) == 1 then return now end
  local due = call('ZRANGE', DELAYED, '0', '0', 'WITHSCORES')[2]
  local lapse = call('ZRANGE', LEASED, '0', '0', 'WITHSCORES')[2]
  due = due and floor(tonumber(due) / 256)
  lapse = tonumber(lapse)
  local moment = due and lapse and math.min(due, lapse) or due or lapse
  return moment and math.max(now, moment)
end

if #ids > 0 then
  if LANE ~= '' and has('l') then
    call('ZREM', WAITERS, LANE)
    if W().leader == LANE then W().nobody_leads() end
    if W().first_waiter() then wake(next_moment()) end
  end
  return reply(nil, #ids == SLICE and wanted > SLICE)
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
