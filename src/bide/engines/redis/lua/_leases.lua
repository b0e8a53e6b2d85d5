-- Leases. What one claim gets is held together: a lease is a token and the moment until which it
-- holds, "token until".
--   leased  sorted set: until -> lease
--   leases  hash: lease -> the ids that it was given for, a line each, none twice;
--           "lease left" -> how many of them it still holds. One that holds nothing any more goes.
--   held    hash: id -> name of the chunk, lease, holder. What stands here is so, whatever a list of
--           ids says.
-- A lease of many is whole until somebody asks for one of its messages, and most are acked before.
-- Of its messages nothing stands in `held`; in `leases` there are, beside the above,
--   "lease marks" -> a line: name of a chunk and how many, again and again; behind it the holder;
--   "whole" -> the whole leases, a line each, the newest first: a few, as reads go through them all.

local NAME = 10  -- how long the name of a chunk is
local MOST = 4   -- so many leases are whole at most

local function forget_lease(lease)
  call('ZREM', LEASED, lease)
  call('HDEL', LEASES, lease, lease .. ' left')
end

-- A lease no longer holds so many.
local function let_go(lease, total)
  if call('HINCRBY', LEASES, lease .. ' left', -total) <= 0 then forget_lease(lease) end
end

local function listed_in(lease)
  local ids = {}
  for id in string.gmatch(call('HGET', LEASES, lease) or '', '[^\n]+') do ids[#ids + 1] = id end
  return ids
end

local function whole_leases()
  return has('h') and listed_in('whole') or {}
end

-- These are the whole leases now, and this one is none any more.
local function no_longer_whole(lease, others)
  call('HDEL', LEASES, lease .. ' marks')
  if #others > 0 then
    call('HSET', LEASES, 'whole', concat(others, '\n'))
  else
    call('HDEL', LEASES, 'whole')
    flag('h', false)
  end
end

-- Returns what `held` would say of the messages of a whole lease, one after the other.
local function marks_in(lease)
  local names, holder = string.match(call('HGET', LEASES, lease .. ' marks') or '\n', '^(.-)\n(.*)$')
  local marks = {}
  for name, total in string.gmatch(names, '(%x+) (%d+)') do
    local mark = name .. lease .. ' ' .. holder
    for _ = 1, tonumber(total) do marks[#marks + 1] = mark end
  end
  return marks
end

-- Has no lease be whole: for who changes what is held.
local function spread()
  if not has('h') then return end
  for _, lease in ipairs(whole_leases()) do
    local ids, marks, held = listed_in(lease), marks_in(lease), {}
    for i, known in ipairs(each('HMGET', HELD, ids)) do
      if not known then  -- else this is half a change, left by a server that died
        held[#held + 1] = ids[i]
        held[#held + 1] = marks[i]
      end
    end
    add('HSET', HELD, held)
    if #held < 2 * #ids then let_go(lease, #ids - #held / 2) end
    no_longer_whole(lease, {})
  end
end

-- Returns what `held` would say of an id if no lease were whole.
local in_whole
local function mark_in_whole(id)
  if not in_whole then
    in_whole = {}
    for _, lease in ipairs(whole_leases()) do
      local marks = marks_in(lease)
      for i, listed in ipairs(listed_in(lease)) do in_whole[listed] = in_whole[listed] or marks[i] end
    end
  end
  return in_whole[id] or false
end

-- The same, for who asks for a single one: to make a table of all ids takes a millisecond.
local function find_in_whole(id)
  for _, lease in ipairs(whole_leases()) do
    local lines = '\n' .. (call('HGET', LEASES, lease) or '') .. '\n'
    local at = find(lines, '\n' .. id .. '\n', 1, true)
    if at then
      local _, before = string.gsub(sub(lines, 2, at), '\n', '')
      return marks_in(lease)[before + 1]
    end
  end
  return false
end

-- Returns who holds each of these ids, as `held` says it, or false.
local function marks_of(ids)
  local marks = each('HMGET', HELD, ids)
  if has('h') then
    local look = #ids == 1 and find_in_whole or mark_in_whole
    for i, id in ipairs(ids) do marks[i] = marks[i] or look(id) end
  end
  return marks
end

-- A lease holds these as well.
local function hold(lease, moment, ids)
  call('ZADD', LEASED, moment, lease)
  if call('HINCRBY', LEASES, lease .. ' left', #ids) == #ids then
    call('HSET', LEASES, lease, concat(ids, '\n'))
    return
  end
  local all, is_listed = listed_in(lease), {}
  for _, id in ipairs(all) do is_listed[id] = true end
  for _, id in ipairs(ids) do
    if not is_listed[id] then all[#all + 1] = id end
  end
  call('HSET', LEASES, lease, concat(all, '\n'))
end

-- Returns the ids that a lease holds, what `held` says of each, and how many were looked at; or is to
-- look at these ids.
local function held_by(lease, ids)
  ids = ids or listed_in(lease)
  local mine, marks, wanted = {}, {}, lease .. ' '
  for i, mark in ipairs(marks_of(ids)) do
    if mark and find(mark, wanted, NAME + 1, true) == NAME + 1 then
      mine[#mine + 1], marks[#marks + 1] = ids[i], mark
    end
  end
  return mine, marks, #ids
end
