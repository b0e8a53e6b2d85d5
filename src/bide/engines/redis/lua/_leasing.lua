-- What claims share: taking back leases that are over, and moving what is due to ready.

local function due_by_now() return int(now * 256 + 255) end  -- the highest rank of a message that is due

local function is_late(r)
  return r.expires and now > r.due + r.expires
end

-- Takes back up to `limit` messages whose lease is over, 200 at most; returns how many.
local function take_back(limit)
  if limit <= 0 then return 0 end
  local members = call('ZRANGEBYSCORE', LEASED, '-inf', int(now), 'LIMIT', 0, min(limit, 200))
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
  return #members
end

-- Moves up to `limit` due messages to ready, 1000 at most; returns how many.
local function promote(limit)
  if limit <= 0 then return 0 end
  local found = call('ZRANGEBYSCORE', DELAYED, '-inf', due_by_now(), 'WITHSCORES', 'LIMIT', 0, min(limit, 1000))
  if #found == 0 then return 0 end
  local ranks = {}
  for i = 1, #found, 2 do
    local rank = tonumber(found[i + 1])
    ranks[i], ranks[i + 1] = int(rank % 256 * STRIPE + floor(rank / 256)), found[i]
  end
  if limited then line_up(ranks) end
  call('ZADD', READY, unpack(ranks))
  call('ZREMRANGEBYRANK', DELAYED, 0, #found / 2 - 1)
  return #found / 2
end
