-- Waking. Of all lanes that wait, one leads: it asks at the next moment. A second one asks a beat
-- later, in case that the first has died. The others hear of a change when it is their turn.
-- W() are the functions, and who leads.

local BEAT = 50

local function waking()
  local w = {}
  local known = call('HMGET', META, 'leader', 'lead_at')
  w.leader, w.at = known[1], tonumber(known[2] or nil)

  local function tell(lane, moment)
    local hint = ARGV[1] == '' and 'in ' .. number(moment - now) or 'at ' .. number(moment)
    local queue = SHARDS == 1 and QUEUE or QUEUE .. '#' .. PLACE .. '/' .. SHARDS
    return call('PUBLISH', 'bide:wake:' .. lane, queue .. ' ' .. hint) > 0
  end

  function w.lead(lane, moment)
    w.leader, w.at = lane, moment
    call('HSET', META, 'leader', lane, 'lead_at', number(moment))
    flag('l', true)
  end

  function w.nobody_leads()
    if w.leader then
      w.leader, w.at = false, nil
      call('HDEL', META, 'leader', 'lead_at')
    end
  end

  function w.first_waiter()
    return call('ZRANGE', WAITERS, '0', '0')[1]
  end

  function w.deputize(moment)
    local lane = w.first_waiter()
    while lane and not tell(lane, moment + BEAT) do
      call('ZREM', WAITERS, lane)
      lane = w.first_waiter()
    end
  end

  function w.elect(moment)
    local lane = w.first_waiter()
    while lane do
      call('ZREM', WAITERS, lane)
      if tell(lane, moment) then
        w.lead(lane, moment)
        return w.deputize(moment)
      end
      lane = w.first_waiter()
    end
    w.nobody_leads()
    flag('l', false)
  end

  function w.wake(moment)
    if w.at and w.at + BEAT > now then
      if w.at <= moment then return end
      if tell(w.leader, moment) then
        w.lead(w.leader, moment)
        return w.deputize(moment)
      end
    end
    w.elect(moment)
  end
  return w
end

local made_waking
local function W()
  made_waking = made_waking or waking()
  return made_waking
end

-- Something can be claimed from a moment on.
local function wake(moment)
  if moment and has('l') then W().wake(moment) end
end
