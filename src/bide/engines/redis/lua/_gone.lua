-- What leaves the queue for good, and what is remembered for a while only.

-- Says that the messages are gone which were these members of a set, or texts that begin as these.
local function gone(members)
  if #members == 0 then return end
  local parts, names, name = {}, {}, '\1'
  for i = 1, #members do
    local member = members[i]
    if find(member, name, 1, true) ~= 1 then  -- most stand in the chunk of the one before
      name = sub(member, 1, 10)
      if not parts[name] then
        parts[name] = 0
        names[#names + 1] = name
      end
    end
    parts[name] = parts[name] + 1
  end
  local told
  if #names == 1 then
    told = {call('HINCRBY', ALIVE, names[1], -#members)}
  else
    local fields = {}
    told = each('HMGET', ALIVE, names)
    for i, name in ipairs(names) do
      told[i] = (told[i] or 0) - parts[name]
      fields[2 * i - 1], fields[2 * i] = name, told[i]
    end
    many('HSET', ALIVE, fields)
  end
  local over, dropped, sparse = {}, 0, false
  for i, name in ipairs(names) do
    local alive, all = told[i] % 1024, floor(told[i] / 1024)
    if told[i] > 0 and alive == 0 then
      local chunk = tonumber(name, 16)
      call('ZREMRANGEBYSCORE', ORDER, chunk, chunk)
      over[#over + 1] = name
      dropped = dropped + all
    elseif alive * 4 < all then
      sparse = true
    end
  end
  if has('t') then
    local named = {}
    for i, name in ipairs(over) do named[i] = '@' .. name end
    for i, tag in ipairs(each('HMGET', ALIVE, named)) do
      if tag then
        over[#over + 1] = tag
        over[#over + 1] = named[i]
      end
    end
  end
  many('HDEL', ALIVE, over)
  if dropped > 0 then call('HINCRBY', META, 'listed', -dropped) end
  if sparse then O().look_at_some(math.ceil(#members / 128)) end
end

local FORGET, EXPIRED_KEEP = 1000, 86400000

local function forget()
  if not has('k') then return end
  local ends = {acked = now - keep, expired = now - math.max(keep, EXPIRED_KEEP)}
  for state, before in pairs(ends) do
    local members = call('ZRANGEBYSCORE', ENDED[state], '-inf', number(before), 'LIMIT', '0', FORGET)
    if #members > 0 then
      local ids = {}
      for i, member in ipairs(members) do ids[i] = sub(member, SEQ + 1) end
      if has('g') then
        many('ZREM', GROUPS, R().grouped(ids, each('HMGET', RECORDS, ids)))
      end
      call('ZREM', ENDED[state], unpack(members))
      call('HDEL', RECORDS, unpack(ids))
      gone(members)
    end
  end
end
