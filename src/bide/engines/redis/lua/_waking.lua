-- Waking. Of all lanes that wait for the same head of the queue, one leads: it claims at that moment. A
-- second one, its deputy, claims a beat later, in case the leader has died. The others sleep until a
-- change makes it their turn. A lane that does not hear its channel is passed over.
local BEAT = 50
local leader, lead_at = meta[7], tonumber(meta[8])
local tell, lead, lead_no_more, first_waiter, deputize, elect, wake_one, enroll

local function waking()
  if tell then return end

  function tell(lane, moment)
    local hint = ARGV[1] == '' and 'in ' .. int(moment - now) or 'at ' .. int(moment)
    local shard = SHARDS > 1 and '#' .. SHARD .. '/' .. SHARDS or ''
    return call('PUBLISH', 'bide:wake:' .. lane, QUEUE .. shard .. ' ' .. hint) > 0
  end

  function lead(lane, moment)
    leader, lead_at = lane, moment
    call('HSET', META, 'leader', lane, 'lead_at', int(moment))
    flag('l', true)
  end

  function lead_no_more()
    if not leader then return end
    leader, lead_at = false, nil
    call('HDEL', META, 'leader', 'lead_at')
  end

  function first_waiter()
    return call('ZRANGE', WAITERS, 0, 0)[1]
  end

  function deputize(moment)
    local lane = first_waiter()
    while lane and not tell(lane, moment + BEAT) do
      call('ZREM', WAITERS, lane)
      lane = first_waiter()
    end
  end

  function elect(moment)
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

  function wake_one(moment)
    if lead_at and lead_at + BEAT > now then
      if lead_at <= moment then return end
      if tell(leader, moment) then
        lead(leader, moment)
        return deputize(moment)
      end
    end
    elect(moment)
  end

  function enroll()
    call('ZADD', WAITERS, 'NX', int(now), LANE)
    flag('l', true)
  end
end

-- Something can be claimed from `moment` on: wakes one lane, unless the leader claims by then.
local function wake(moment)
  if not moment or not has('l') then return end
  waking()
  wake_one(moment)
end
