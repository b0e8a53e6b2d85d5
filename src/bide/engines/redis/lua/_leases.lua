-- Leases. What one claim gets is held together: a lease is a token and the moment until which it
-- holds, "token until".
--   leased  sorted set: until -> lease
--   leases  hash: lease -> the ids that it was given for, a line each, none twice;
--           "lease left" -> how many of them it still holds. One that holds nothing any more goes.
--   held    hash: id -> name of the chunk, lease, holder. What stands here is so, whatever a list of
--           ids says.

local NAME = 10  -- how long the name of a chunk is

-- A lease holds these as well.
local function hold(lease, moment, ids)
  call('ZADD', LEASED, moment, lease)
  if call('HINCRBY', LEASES, lease .. ' left', #ids) == #ids then
    call('HSET', LEASES, lease, concat(ids, '\n'))
    return
  end
  local lines = call('HGET', LEASES, lease) or ''
  local all, listed = {lines}, {}
  for id in string.gmatch(lines, '[^\n]+') do listed[id] = true end
  for _, id in ipairs(ids) do
    if not listed[id] then all[#all + 1] = id end
  end
  call('HSET', LEASES, lease, concat(all, '\n'))
end

local function forget_lease(lease)
  call('ZREM', LEASED, lease)
  call('HDEL', LEASES, lease, lease .. ' left')
end

-- A lease no longer holds so many.
local function let_go(lease, total)
  if call('HINCRBY', LEASES, lease .. ' left', -total) <= 0 then forget_lease(lease) end
end

-- Returns the ids that a lease holds, what `held` says of each, and how many were looked at; or is to
-- look at these ids.
local function held_by(lease, ids)
  if not ids then
    ids = {}
    for id in string.gmatch(call('HGET', LEASES, lease) or '', '[^\n]+') do ids[#ids + 1] = id end
  end
  local mine, marks, wanted = {}, {}, lease .. ' '
  for i, mark in ipairs(each('HMGET', HELD, ids)) do
    if mark and find(mark, wanted, NAME + 1, true) == NAME + 1 then
      mine[#mine + 1], marks[#marks + 1] = ids[i], mark
    end
  end
  return mine, marks, #ids
end
