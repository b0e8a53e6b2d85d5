-- What claims share: taking back leases that are over, and moving what is due to ready.

local function due_by_now() return int(delayed_reach(now)) end  -- the highest rank of a message that is due

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
  local due = call('ZRANGEBYSCORE', DELAYED, '-inf', due_by_now(), 'WITHSCORES', 'LIMIT', '0', int(limit))
  if #due == 0 then return false end
  local ranks = {}
  for i = 1, #due, 2 do
    local rank = tonumber(due[i + 1])
    ranks[i], ranks[i + 1] = int(rank_when_ready(rank)), due[i]
  end
  if limited then line_up(ranks) end
  call('ZADD', READY, unpack(ranks))
  call('ZREMRANGEBYRANK', DELAYED, '0', int(#due / 2 - 1))
  return true
end

-- Waking. WAITERS has the lanes that wait, with the time at which each claims. Two claim when the head is
-- due: the first one then, the second one a beat later, in case the first has died. The others, whose times
-- are FAR, claim when they are told. A lane that does not listen to its channel is skipped.
local wake, enter, next_moment
do
local BEAT = 50
local FAR = 2 ^ 50

-- Tells a lane to claim at `at`; returns whether it listens.
local function tell(lane, at)
  local hint = not given and 'in ' .. int(at - now) or 'at ' .. int(at)
  return call('PUBLISH', 'bide:wake:' .. lane, names() .. ' ' .. hint) > 0
end

-- Forgets the lanes that did not claim when they were to.
local function forget_silent() call('ZREMRANGEBYSCORE', WAITERS, '-inf', int(now - BEAT)) end

-- Returns from when on there is something to claim or to take back.
function next_moment()
  local moment
  if limited then
    settle_all()
    local us = opens()
    moment = lining and now or us and us / MICROSECONDS
  elseif call('EXISTS', READY) == 1 then
    return now
  end
  local due = call('ZRANGE', DELAYED, 0, 0, 'WITHSCORES')[2]
  local lapse = tonumber(call('ZRANGE', LEASED, 0, 0, 'WITHSCORES')[2])
  due = due and due_of_rank(due)
  for _, each in pairs({due, lapse}) do moment = min(moment or each, each) end
  return moment and max(now, moment)
end

-- A message can be claimed from `moment` on: wakes two lanes, unless two claim by then.
function wake(moment)
  if limited and has('l') then moment = next_moment() end
  if not moment or not has('l') then return end
  moment = ceil(max(moment, now))
  forget_silent()
  local awake, at = 0, moment
  while awake < 2 do
    local lane, claims = unpack(call('ZRANGE', WAITERS, awake, awake, 'WITHSCORES'))
    if not lane then break end
    if tonumber(claims) > at and not tell(lane, at) then
      call('ZREM', WAITERS, lane)
    else
      call('ZADD', WAITERS, 'LT', int(at), lane)
      awake, at = awake + 1, moment + BEAT
    end
  end
  if awake == 0 then flag('l', false) end
end

-- Notes that this lane waits, and returns when it should claim; nil: when it is told. No message is due
-- before `moment`. Of many lanes that wait until they are told, the latest thousand stay: those that have
-- died are found out only then, and the others enter again when they look, within seconds.
function enter(moment)
  forget_silent()
  local before = tonumber(call('ZSCORE', WAITERS, LANE) or FAR + now)  -- when it was to claim until now
  -- Returns how many other lanes claim by a time.
  local function others(by) return call('ZCOUNT', WAITERS, '-inf', int(by)) - (before <= by and 1 or 0) end
  local at = moment and ceil(moment)
  if at and others(at) > 0 then  -- it is the second one, or one of those that are told
    moment = moment + BEAT
    at = others(at + BEAT) < 2 and at + BEAT or nil
  end
  call('ZADD', WAITERS, int(at or max(before, FAR)), LANE)
  call('ZREMRANGEBYRANK', WAITERS, 2, -BULK + 1)
  flag('l', true)
  return at and moment
end
end

-- Returns how many messages are where; the last of these numbers: how many of DELAYED are due.
local function sizes()
  local dead = count_dead()
  return call('ZCARD', DELAYED), call('ZCARD', READY), call('HLEN', LEASES), dead, call('ZCARD', KEPT) - dead,
    call('ZCOUNT', DELAYED, '-inf', due_by_now())
end
