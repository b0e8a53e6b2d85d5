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
--
-- L() are the functions.

local NAME = 10  -- how long the name of a chunk is
local MOST = 2   -- so many leases are whole at most

local function leases()
  local l = {}

  function l.forget(lease)
    call('HDEL', LEASES, lease, lease .. ' left', lease .. ' marks')
    call('ZREM', LEASED, lease)
  end

  -- A lease no longer holds so many.
  function l.let_go(lease, total)
    if call('HINCRBY', LEASES, lease .. ' left', -total) <= 0 then l.forget(lease) end
  end

  function l.ids_of(lease)
    local ids = {}
    for id in string.gmatch(call('HGET', LEASES, lease) or '', '[^\n]+') do ids[#ids + 1] = id end
    return ids
  end

  function l.whole()
    return has('h') and l.ids_of('whole') or {}
  end

  -- These are the whole leases now, and this one is none any more.
  function l.no_longer_whole(lease, others)
    if #others > 0 then
      call('HSET', LEASES, 'whole', concat(others, '\n'))
    else
      call('HDEL', LEASES, 'whole')
      flag('h', false)
    end
    call('HDEL', LEASES, lease .. ' marks')
  end

  -- Returns what `held` would say of the messages of a whole lease, one after the other.
  function l.marks_in(lease)
    local names, holder = string.match(call('HGET', LEASES, lease .. ' marks') or '\n', '^(.-)\n(.*)$')
    local marks = {}
    for name, total in string.gmatch(names, '(%x+) (%d+)') do
      local mark = name .. lease .. ' ' .. holder
      for _ = 1, tonumber(total) do marks[#marks + 1] = mark end
    end
    return marks
  end

  -- Has no lease be whole: for who changes what is held. Half of this, left by a server that died, is
  -- done again: so nothing is counted down, and what stands there already is still held.
  function l.spread()
    if not has('h') then return end
    local left = l.whole()
    if #left == 0 then flag('h', false) end
    while #left > 0 do
      local lease = table.remove(left, 1)
      local ids, marks, held, mine = l.ids_of(lease), l.marks_in(lease), {}, 0
      for i, known in ipairs(each('HMGET', HELD, ids)) do
        local mark = marks[i]
        if mark and not known then
          held[#held + 1] = ids[i]
          held[#held + 1] = mark
        end
        if mark and (not known or known == mark) then mine = mine + 1 end
      end
      add('HSET', HELD, held)
      if mine == 0 then
        l.forget(lease)
      elseif mine < #ids then
        call('HSET', LEASES, lease .. ' left', mine)
      end
      l.no_longer_whole(lease, left)
    end
  end

  -- Returns what `held` would say of an id if no lease were whole.
  local in_whole
  function l.mark_in_whole(id)
    if not in_whole then
      in_whole = {}
      for _, lease in ipairs(l.whole()) do
        local marks = l.marks_in(lease)
        for i, listed in ipairs(l.ids_of(lease)) do in_whole[listed] = in_whole[listed] or marks[i] end
      end
    end
    return in_whole[id] or false
  end

  -- The same, for who asks for a single one: to make a table of all ids takes a millisecond.
  function l.find_in_whole(id)
    for _, lease in ipairs(l.whole()) do
      local lines = '\n' .. (call('HGET', LEASES, lease) or '') .. '\n'
      local at = find(lines, '\n' .. id .. '\n', 1, true)
      if at then
        local _, before = string.gsub(sub(lines, 2, at), '\n', '')
        return l.marks_in(lease)[before + 1]
      end
    end
    return false
  end

  -- Returns who holds each of these ids, as `held` says it, or false.
  function l.marks_of(ids)
    local marks = each('HMGET', HELD, ids)
    if has('h') then
      local look = #ids == 1 and l.find_in_whole or l.mark_in_whole
      for i, id in ipairs(ids) do marks[i] = marks[i] or look(id) end
    end
    return marks
  end

  -- A lease holds these as well.
  function l.hold(lease, moment, ids)
    if has('h') and call('HEXISTS', LEASES, lease .. ' marks') == 1 then l.spread() end
    call('ZADD', LEASED, moment, lease)
    if call('HINCRBY', LEASES, lease .. ' left', #ids) == #ids then
      call('HSET', LEASES, lease, concat(ids, '\n'))
      return
    end
    local all, is_listed = l.ids_of(lease), {}
    for _, id in ipairs(all) do is_listed[id] = true end
    for _, id in ipairs(ids) do
      if not is_listed[id] then all[#all + 1] = id end
    end
    call('HSET', LEASES, lease, concat(all, '\n'))
  end

  -- Returns the ids that a lease holds, what `held` says of each, and how many were looked at; or is to
  -- look at these ids.
  function l.held_by(lease, ids)
    ids = ids or l.ids_of(lease)
    local mine, marks, wanted = {}, {}, lease .. ' '
    for i, mark in ipairs(l.marks_of(ids)) do
      if mark and find(mark, wanted, NAME + 1, true) == NAME + 1 then
        mine[#mine + 1], marks[#marks + 1] = ids[i], mark
      end
    end
    return mine, marks, #ids
  end
  return l
end

local made_leases
local function L()
  made_leases = made_leases or leases()
  return made_leases
end
