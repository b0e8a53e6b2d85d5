-- Waking. Of all lanes that wait for the same head of the queue, one leads: it claims at that moment. A
-- second one, its deputy, claims a beat later, in case the leader has died. The others sleep until a
-- change makes it their turn. A lane that does not hear its channel is passed over.
local BEAT = 50

local function tell(lane, moment)
  local hint = ARGV[1] == '' and 'in ' .. int(moment - now) or 'at ' .. int(moment)
  local shard = SHARDS > 1 and '#' .. SHARD .. '/' .. SHARDS or ''
  return call('PUBLISH', 'bide:wake:' .. lane, QUEUE .. shard .. ' ' .. hint) > 0
end

local function lead(lane, moment)
  leader, lead_at = lane, moment
  call('HSET', META, 'leader', int(moment) .. ' ' .. lane)
  flag('l', true)
end

local function lead_no_more()
  if not leader then return end
  leader, lead_at = nil, nil
  call('HDEL', META, 'leader')
end

local function first_waiter()
  return call('ZRANGE', WAITERS, 0, 0)[1]
end

local function deputize(moment)
  local lane = first_waiter()
  while lane and not tell(lane, moment + BEAT) do
    call('ZREM', WAITERS, lane)
    lane = first_waiter()
  end
end

local function elect(moment)
  local lane = first_waiter()
  while lane do
    call('ZREM', WAITERS, lane)
    if tell(lane, moment) then
      lead(lane, moment)
      return deputize(moment)
    end
    lane = first_waiter()
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

-- Something can be claimed from `moment` on: wakes one lane, unless the leader claims by then.
local function wake(moment)
  if limited and has('l') then
    moment = next_moment()
    moment = moment and ceil(moment)
  end
  if not moment or not has('l') then return end
  if lead_at and lead_at + BEAT > now then
    if lead_at <= moment then return end
    if tell(leader, moment) then
      lead(leader, moment)
      return deputize(moment)
    end
  end
  elect(moment)
end

local function enroll()
  call('ZADD', WAITERS, 'NX', int(now), LANE)
  flag('l', true)
end
