-- What leases messages, for claims from one shard or from several.

local LOTS = 256  -- of so many or more the records are left to be fetched, at less cost

local ids, texts, token = {}, {}, ''  -- what was leased, and the number of the claim
local apart = false  -- whether the records are left to be fetched
local chunks = {}  -- the names of those in which it stands
local until_text
local reach = number(now * 256 + 255)  -- the highest rank of what is due

local READ = 2000  -- of so many ids of leases one call reads about, whoever still holds them

-- Takes back what is held by leases that are over, at most so many; returns how many.
local function take_back(limit)
  local over = call('ZRANGEBYSCORE', LEASED, '-inf', number(now), 'LIMIT', '0', limit)
  if #over > 0 then L().spread() end
  local taken, read = 0, 0
  for _, lease in ipairs(over) do
    if read >= READ then break end
    local held, _, looked = L().held_by(lease)
    read = read + looked
    local last = math.min(#held, limit - taken)
    for i = 1, last do
      if not R().locate(held[i]) then call('HDEL', HELD, held[i]) end
    end
    taken = taken + last
    if last < #held then
      call('HSET', LEASES, lease, concat(held, '\n', last + 1), lease .. ' left', #held - last)
      break
    end
    L().forget(lease)
  end
  return taken
end

-- Weighs what is due, the first so many.
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

local function is_too_late(id, text)
  local r = text and is_long(text) and R().parse(id, text)
  return r and r.expires and now > r.due + r.expires
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

-- Returns those that have a record. Others are halves of changes, left by a server that died: see
-- the documentation of bide on the append-only file.
local function whole(members, found, records)
  local fine = {{}, {}, {}}
  for i, text in ipairs(records) do
    if text then
      local n = #fine[1] + 1
      fine[1][n], fine[2][n], fine[3][n] = members[i], found[i], text
    end
  end
  return unpack(fine)
end

-- Whether whole leases have what is leased now: then they are halves of claims, left by a server
-- that died, which leave their messages where the next claim finds them, the first one first.
local function is_leased_again(others, found)
  local lines
  for _, other in ipairs(others) do
    lines = lines or '\n' .. concat(found, '\n') .. '\n'
    local first = string.match(call('HGET', LEASES, other) or '', '^[^\n]+')
    if first and find(lines, '\n' .. first .. '\n', 1, true) then return true end
  end
  return false
end

-- Holds messages, of which so many after the other stand in the chunk of a name. Of what is held
-- already, by half a claim, this is said instead.
local function hold_all(lease, found, names, holder)
  local others = has('h') and L().whole() or {}
  local again = is_leased_again(others, found)
  if apart and not again and #others < MOST and call('HEXISTS', LEASES, lease) == 0 then
    flag('h', true)
    if call('EXISTS', HELD) == 1 then many('HDEL', HELD, found) end
    call('ZADD', LEASED, until_text, lease)
    call('HSET', LEASES, lease, concat(found, '\n'), lease .. ' left', #found,
      lease .. ' marks', concat(names, ' ') .. '\n' .. holder,
      'whole', concat({lease, unpack(others)}, '\n'))
    return
  end
  local held = {}
  for i = 1, #names, 2 do
    local mark = names[i] .. lease .. ' ' .. holder
    for _ = 1, names[i + 1] do
      local id = found[#held / 2 + 1]
      held[#held + 1] = id
      held[#held + 1] = mark
    end
  end
  if again then L().spread() end
  L().hold(lease, until_text, found)
  add('HSET', HELD, held)
end

-- How many bytes the records of a claim may have, the first one in any case; told by the verb.
local room = math.huge
local full = false

-- Leaves out the members for whose records there is no room.
local function cut(members)
  local some = false
  for i, member in ipairs(members) do
    local id = sub(member, SEQ + 1)
    local size = call('HSTRLEN', RECORDS, id)
    if has('e') and is_too_late(id, call('HGET', RECORDS, id)) then size = 0 end
    if size > room and (some or #ids > 0) then
      full = true
      return {unpack(members, 1, i - 1)}
    end
    room, some = room - size, some or size > 0
  end
  return members
end

-- Leases the first members of a set, or sets them aside where it is too late for them.
local function lease(set, members, holder, next_token)
  local found, before = {}, #members
  for i = 1, before do found[i] = sub(members[i], SEQ + 1) end
  apart = not has('e') and (apart or #ids == 0 and before >= LOTS)
  local records = {}
  if not apart then
    records = each('HMGET', RECORDS, found)
    for i = 1, before do
      if not records[i] then
        members, found, records = whole(members, found, records)
        break
      end
    end
    if has('e') then members, found, records = in_time(members, found, records) end
  end
  local total = #members
  if total > 0 then
    if token == '' then token = number(next_token()) end
    until_text = number(now + ARGV[6])
    local lease, names = token .. ' ' .. until_text, {}
    local first, name = 1, sub(members[1], 1, NAME)
    for i = 2, total + 1 do
      if i > total or find(members[i], name, 1, true) ~= 1 then  -- most stand in one chunk
        names[#names + 1], names[#names + 2] = name, i - first
        chunks[name] = true
        if i <= total then first, name = i, sub(members[i], 1, NAME) end
      end
    end
    hold_all(lease, found, names, holder)
  end
  -- Last, so that of half a change that a server left, which died, nothing is missing.
  call('ZREMRANGEBYRANK', set, '0', before - 1)
  if #ids == 0 then
    ids, texts = found, records
  else
    for i = 1, total do ids[#ids + 1], texts[#texts + 1] = found[i], records[i] end
  end
end

-- Returns a line for each tag that may stand in what was leased: tag, name of the chunk, moment.
local function tags_told()
  if not has('t') then return '' end
  local names, lines = {}, {}
  for name in pairs(chunks) do names[#names + 1] = '@' .. name end
  local found = {}
  for _, tag in ipairs(each('HMGET', ALIVE, names)) do
    if tag then found[#found + 1] = tag end
  end
  for i, told in ipairs(each('HMGET', ALIVE, found)) do
    if told then lines[#lines + 1] = found[i] .. ' ' .. told end
  end
  return concat(lines, '\n')
end

-- For the case that the reply is lost: by this `recover` finds the messages again.
local function remember_lease()
  if #ids > 0 then
    remember('[' .. token .. ',' .. until_text .. ']')
  end
end

-- Returns from when on there is something to claim or to take back.
local function next_moment()
  if call('EXISTS', READY) == 1 then return now end
  local due = call('ZRANGE', DELAYED, '0', '0', 'WITHSCORES')[2]
  local lapse = call('ZRANGE', LEASED, '0', '0', 'WITHSCORES')[2]
  due = due and floor(tonumber(due) / 256)
  lapse = tonumber(lapse)
  local moment = due and lapse and math.min(due, lapse) or due or lapse
  return moment and math.max(now, moment)
end

-- A lane that got something waits no longer: let the next one wait in its place.
local function wait_no_more()
  if LANE == '' or not has('l') then return end
  call('ZREM', WAITERS, LANE)
  if W().leader == LANE then W().nobody_leads() end
  if W().first_waiter() then wake(next_moment()) end
end
