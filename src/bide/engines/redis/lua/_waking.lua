-- What claims share: taking back leases that are over, and moving what is due to ready.

local function due_by_now() return int(now * 256 + 255) end  -- the highest rank of a message that is due

local function is_late(r)
  return r.expires and now > r.due + r.expires
end

local PROMOTE = 1024  -- see bide.model.rank

-- Takes back messages whose lease is over, PROMOTE at most; returns whether there were some.
local function take_back()
  local members = call('ZRANGEBYSCORE', LEASED, '-inf', int(now), 'LIMIT', '0', int(PROMOTE))
  for _, member in ipairs(members) do
    local id = sub(member, ORDER + 1)
    local r = locate(id)  -- takes it back
    if r and r.token then  -- this and the next: half a change, left by a server that died
      call('ZADD', LEASED, int(r.until_), r.member)
    elseif call('ZREM', LEASED, member) == 1 then
      call('HDEL', LEASES, id)
      if r and not r.state and not call('ZSCORE', DELAYED, r.member) then  -- its lease could not be read
        to_ready(r)
      end
    end
    if r and r.held_by and r.state == 'dead' then
      died[#died + 1] = {id, r.attempt, r.held_by}
    end
  end
  return #members > 0
end

-- Moves up to `limit` due messages to ready; returns whether there were some.
local function promote(limit)
  local found = call('ZRANGEBYSCORE', DELAYED, '-inf', due_by_now(), 'WITHSCORES', 'LIMIT', '0', int(limit))
  if #found == 0 then return false end
  local ranks = {}
  for i = 1, #found, 2 do
    local rank = tonumber(found[i + 1])
    ranks[i], ranks[i + 1] = int(rank % 256 * STRIPE + floor(rank / 256)), found[i]
  end
  if limited then line_up(ranks) end
  call('ZADD', READY, unpack(ranks))
  call('ZREMRANGEBYRANK', DELAYED, '0', int(#found / 2 - 1))
  return true
end

-- Waking. One of the lanes that wait for the head of the queue leads: it claims when the head is due. A
-- second one, its deputy, claims a beat later, in case the leader has died. The others sleep until a
-- change makes it their turn. A lane that does not listen to its channel is skipped.
local BEAT = 50

local function tell(lane, moment)
  local hint = ARGV[1] == '' and 'in ' .. int(moment - now) or 'at ' .. int(moment)
  local shard = SHARDS > 1 and '#' .. SHARD .. '/' .. SHARDS or ''
  return call('PUBLISH', 'bide:wake:' .. lane, QUEUE .. shard .. ' ' .. hint) > 0
end

local function first_waiter()
  return call('ZRANGE', WAITERS, 0, 0)[1]
end

-- Tells the first lane that waits and listens, and returns that one.
local function tell_first(moment)
  local lane = first_waiter()
  while lane and not tell(lane, moment) do
    call('ZREM', WAITERS, lane)
    lane = first_waiter()
  end
  return lane
end

-- Makes a lane, which is not among the waiters any more, the leader, and the first waiter its deputy.
local function lead(lane, moment)
  leader, lead_at = lane, moment
  call('HSET', META, 'leader', int(moment) .. ' ' .. lane)
  flag('l', true)
  tell_first(moment + BEAT)
end

local function lead_no_more()
  if not leader then return end
  leader, lead_at = nil, nil
  call('HDEL', META, 'leader')
end

local function elect(moment)
  local lane = tell_first(moment)
  if lane then
    call('ZREM', WAITERS, lane)
    return lead(lane, moment)
  end
  lead_no_more()
  flag('l', false)
end

-- Returns from when on there is something to claim or to take back.
local function next_moment()
  local moment
  if limited then
    settle_all()
    local us = opens()
    moment = lining and now or us and us / 1000
  elseif call('EXISTS', READY) == 1 then
    return now
  end
  local due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
  local lapse = tonumber(call('ZRANGE', LEASED, 0, 0, 'WITHSCORES')[2])
  due = due and floor(due / 256)
  for _, each in pairs({due, lapse}) do moment = min(moment or each, each) end
  return moment and max(now, moment)
end

-- A message can be claimed from `moment` on: wakes one lane, unless the leader claims by then.
local function wake(moment)
  if limited and has('l') then
    moment = next_moment()
    moment = moment and ceil(moment)
  end
  if not moment or not has('l') then return end
  if lead_at and lead_at + BEAT > now then
    if lead_at <= moment then return end
    if tell(leader, moment) then return lead(leader, moment) end
  end
  elect(moment)
end

-- Notes that this lane waits. A lane that has died is found out only when it is to be told something, so
-- only the latest thousand stay: older ones that still wait enroll again when they look, within seconds.
local function enroll()
  if call('ZADD', WAITERS, 'NX', int(now), LANE) == 1 then call('ZREMRANGEBYRANK', WAITERS, 0, -1001) end
  flag('l', true)
end

-- Returns how many messages are where; the last of these numbers: how many of DELAYED are due.
local function sizes()
  return call('ZCARD', DELAYED), call('ZCARD', READY), call('HLEN', LEASES), call('ZCARD', DEAD),
    call('ZCARD', KEPT), call('ZCOUNT', DELAYED, '-inf', due_by_now())
end
